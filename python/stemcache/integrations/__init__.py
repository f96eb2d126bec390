"""Bridges to what runs models. Nothing in the rest of the package imports them."""
