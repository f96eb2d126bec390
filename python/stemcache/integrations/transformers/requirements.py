"""Says what to install, before anything is imported that needs it."""

_NEEDS = "stemcache.integrations.transformers needs torch and transformers 5.24 or newer"

try:
    import torch  # noqa: F401
    import transformers

    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        raise ImportError(f"this is transformers {transformers.__version__}")  # noqa: TRY301
except ImportError as error:
    raise ImportError(f"{_NEEDS}: pip install 'stemcache[transformers]' ({error})") from error
