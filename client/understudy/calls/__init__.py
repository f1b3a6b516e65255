"""Calls of commands to nodes and routers: the options that say where and how, requests, and answers in pages."""
