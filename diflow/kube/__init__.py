"""How diflow talks to the outside. Importing this package imports nothing: take the module that you need."""
