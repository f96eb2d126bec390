"""The life of a request over the index and the pools."""
