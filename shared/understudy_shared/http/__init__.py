"""HTTP as services speak it: problems, request targets, origins, pages for people, the OpenAPI document."""
