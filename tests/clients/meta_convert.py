"""Calls transformers' own conversion of Meta's files: meta_convert.py CALLS.json, a list of its arguments."""
import json
import pathlib
import sys

from transformers.models.llama.convert_llama_weights_to_hf import write_model

for arguments in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    write_model(**arguments)
