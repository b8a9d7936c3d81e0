"""The configuration of a consumer: parsed, checked, and each name in one table."""
