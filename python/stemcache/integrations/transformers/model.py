class CachedModel: pass
class Generation: pass
class Prefill: pass
def make_pools(): pass
