/* tests/fuzz/bridge_args.c - Megatron-Bridge's run_config.yaml: a config.json is made of it, and it
 * is written with another value; what is written is YAML with that value. */
#include "reshard/formats/megatron/bridge_args.h"
#include "reshard/formats/megatron/megatron_config.h"
#include "reshard/formats/megatron/yaml_tree.h"
#include "tests/fuzz/fuzz.h"

enum { MEMORY = 64 << 20 };

#define KEY "tensor_model_parallel_size"

static void write_again(const char *text, size_t size)
{
    struct yaml_tree t = { 0 }, again = { 0 };
    struct tp_err err = { 0 };
    char *written = NULL;
    size_t n = 0;
    tp_status st = yaml_tree_parse(&t, text, size, BRIDGE_RUN_CONFIG, &err);
    int model = yaml_tree_get(&t, yaml_tree_root(&t), "model");
    const bool has = yaml_tree_get(&t, model, KEY) > 0;

    fuzz_check_error(st, &err);
    if (st == TP_OK && yaml_tree_set(&t, model, KEY, "7")) {
        fuzz_check_error(yaml_tree_write(&written, &n, &t, &err), &err);
        if (written) {
            const char *value;

            fuzz_must(yaml_tree_parse(&again, written, n, "again", &err) == TP_OK, err.msg);
            model = yaml_tree_get(&again, yaml_tree_root(&again), "model");
            value = yaml_tree_text(&again, yaml_tree_get(&again, model, KEY));
            fuzz_must(!has || (value && strcmp(value, "7") == 0), "a value that was not written");
        }
    }
    free(written);
    yaml_tree_free(&again);
    yaml_tree_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct piece_source *s = NULL;
    struct bridge_args b;
    struct tp_err err = { 0 };
    const char *text = NULL, *note = NULL;
    tp_status st;

    fuzz_write(BRIDGE_RUN_CONFIG, data, size);
    fuzz_must(piece_source_new(&s, fuzz_dir(), &err) == TP_OK, err.msg);
    piece_source_limit(s, MEMORY);
    st = bridge_args_read(&b, fuzz_dir(), 8, s, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK)
        fuzz_check_error(
            megatron_config_make(&text, &note, b.args, b.path, piece_source_arena(s), &err), &err);
    piece_source_close(s);
    write_again((const char *)data, size);
    return 0;
}
