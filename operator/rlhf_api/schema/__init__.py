"""Definitions of the resources, made of the sections: OpenAPI, CEL, JSON schema."""
