"""Lowering: from a functional ATen graph to loop IR (`lower.lower`).

Nothing is imported here: a process that finds its programs needs the rules, and lowers nothing.
"""
