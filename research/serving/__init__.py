"""Engines that really serve: vLLM with Mjolnir beside vLLM without it, each run in a process of its own."""
