"""Dense attention: every visible pair of query and key is scored."""
