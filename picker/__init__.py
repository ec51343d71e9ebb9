"""Picker, an endpoint picker for LLM workers behind Envoy.

Five nouns carry the program:

* a **worker** is one model server (or one data-parallel rank of it) with a KV cache of its own;
* the **view** (`picker.fleet`) is what this process knows of the workers: facts, loads, cached prefixes, bookings;
* a **prefix chain** (`picker.prompts`) names every prefix of a prompt by one 64-bit hash;
* a **decision** (`picker.scheduling`) is the ordered list of endpoints for a request, or a refusal, with its reasons;
* a **conversation** (`picker.extproc`) is what Envoy and we say to each other about one request.
"""

__version__ = "0.1.0"
