"""The REST API: who may ask, what is answered, and the cache that it is answered from."""
