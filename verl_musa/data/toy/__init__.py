"""Toy assets: a task, a tokenizer and models so small that a recipe's ``make_assets.py`` makes them in a minute.

For recipes on machines without an accelerator. ``sums`` holds the task and its data, ``models`` the networks and their
training, ``publish`` the command line and the all-or-nothing folder. torch and transformers are imported inside the
functions that need them.
"""
