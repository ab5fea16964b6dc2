"""KV eviction policies, by the name the user types."""

POLICIES = {
    "full": "edgepipe.runtimes.llm.kv_policies.full:Full",
    "window": "edgepipe.runtimes.llm.kv_policies.window:Window",
    "h2o": "edgepipe.runtimes.llm.kv_policies.h2o:H2O",
}
