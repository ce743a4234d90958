"""The head of a fleet: it places requests on nodes and passes on what they answer."""
