"""Drafters, by the name the user types."""

DRAFTERS = {
    "lookup": "edgepipe.runtimes.llm.drafters.lookup:Lookup",
    "model": "edgepipe.runtimes.llm.drafters.model:ModelDrafter",
    "sparse": "edgepipe.runtimes.llm.drafters.sparse:SparseDrafter",
}
