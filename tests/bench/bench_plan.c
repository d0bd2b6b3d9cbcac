/*
 * tests/bench/bench_plan.c - what planning a reshard of Llama-405B costs each process that shares
 * it: mpirun -n K bench_plan [CONFIG FROM TO]. Defaults: the 405B model, tp8pp16dp128zero1 to
 * tp16pp8dp64zero1, with AdamW's state. Prints CPU seconds and memory of rank 0 and of the worst
 * rank, without those of the boxes, which each process has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/rank_env.h"
#include "comm/world.h"
#include "core/clock.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "reshard/engine/transfer.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/memory_budget.h"

static const char llama_405b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": "
    "\"silu\","
    " \"vocab_size\": 128256, \"hidden_size\": 16384, \"intermediate_size\": 53248,"
    " \"num_hidden_layers\": 126, \"num_attention_heads\": 128, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0,"
    " \"tie_word_embeddings\": false}";

/* The boxes of a layout, as a checkpoint would have them. */
static tp_status open_boxes(struct checkpoint_target **out, const char *spec_text,
                            const struct model *model, struct tensor *tensors, int n,
                            struct arena *arena, struct tp_err *err)
{
    struct layout *layout = arena_array(arena, 1, sizeof *layout);
    struct spec spec;
    tp_status st;

    if (!layout)
        return tp_fail(err, TP_E_NOMEM, "no memory for a layout");
    TP_TRY(spec_parse(&spec, spec_text, err));
    TP_TRY(layout_make(layout, &spec, model->layers, tensors, n, arena, err));
    st = checkpoint_target_plan(out, layout, NULL, err);
done:
    return st;
}

static tp_status measure(struct transfer *t, struct tp_err *err)
{
    const double start = clock_cpu_seconds();
    const int64_t before = memory_peak_bytes();
    struct transfer_plan *plan = NULL;
    struct transfer_stats stats;
    int64_t x[3];
    tp_status st = transfer_plan_make(&plan, t, err);

    if (st)
        return st;
    transfer_plan_stats(plan, &stats);
    x[0] = (int64_t)((clock_cpu_seconds() - start) * 1e6);
    x[1] = memory_peak_bytes() - before;
    x[2] = stats.tiles;
    TP_TRY(control_max_i64(t->control, x, 3, err));
    if (control_rank(t->control) == 0)
        printf("%d processes, %d and %d boxes: each plans in at most %.2f CPU s and %.0f MiB, for "
               "%lld tiles\n",
               control_size(t->control), t->from->n_extents, t->to->n_extents, (double)x[0] / 1e6,
               (double)x[1] / (1 << 20), (long long)x[2]);
done:
    transfer_plan_free(plan);
    return st;
}

static tp_status run(int argc, char **argv, struct comm_world *ranks, struct tp_err *err)
{
    struct checkpoint_target *from = NULL, *to = NULL;
    struct transfer t = { .memory_bytes = INT64_C(1) << 30, .threads = 2 };
    struct arena arena = { 0 };
    struct tensor *tensors;
    struct reshard_tensor *moved;
    struct model model;
    int n;
    tp_status st;

    TP_TRY(argc > 1
               ? model_config_read(&model, argv[1], &arena, err)
               : model_config_parse(&model, llama_405b, strlen(llama_405b), "405B", &arena, err));
    TP_TRY(model_state(&tensors, &n, &model, DTYPE_BF16, &arena, err));
    TP_TRY(open_boxes(&from, argc > 2 ? argv[2] : "tp8pp16dp128zero1", &model, tensors, n, &arena,
                      err));
    TP_TRY(
        open_boxes(&to, argc > 3 ? argv[3] : "tp16pp8dp64zero1", &model, tensors, n, &arena, err));
    moved = arena_array(&arena, (size_t)n, sizeof *moved);
    for (int i = 0; moved && i < n; i++) {
        moved[i].name = tensors[i].name;
        moved[i].ndim = tensors[i].ndim;
        memcpy(moved[i].shape, tensors[i].shape, sizeof moved[i].shape);
    }
    t.n_tensors = n;
    t.tensors = moved;
    t.from = checkpoint_target_endpoint(from);
    t.to = checkpoint_target_endpoint(to);
    t.control = comm_control(ranks);
    st = moved ? measure(&t, err) : tp_fail(err, TP_E_NOMEM, "no memory for %d tensors", n);
done:
    checkpoint_target_close(from);
    checkpoint_target_close(to);
    arena_free(&arena);
    return st;
}

int main(int argc, char **argv)
{
    struct comm_world *ranks = NULL;
    struct comm_env env;
    struct tp_err err = { 0 };
    tp_status st;

    rank_env_read(&env);
    st = comm_open(&ranks, &env, 0, &err);
    if (!st)
        st = run(argc, argv, ranks, &err);
    if (st)
        fprintf(stderr, "bench_plan: %s\n", err.msg);
    comm_close(ranks, st);
    return tp_exit_code(st);
}
