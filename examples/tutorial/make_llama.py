#!/usr/bin/env python3
"""Make a small Llama with random weights and its own tokenizer, as a Hugging Face folder.

    make_llama.py TEXT FOLDER

A stand-in for your own model: config.json, model.safetensors, tokenizer.json and
generation_config.json, as `save_pretrained` writes them. Needs transformers, tokenizers, torch.
"""
import sys

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

text, folder = sys.argv[1:]
bpe = ByteLevelBPETokenizer()
bpe.train([text], vocab_size=2048, special_tokens=["<s>", "</s>"])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>",
                                    eos_token="</s>")
tokenizer.save_pretrained(folder)

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=128, intermediate_size=352, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=256,
    bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id))
model.save_pretrained(folder)
print(f"{folder}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")
