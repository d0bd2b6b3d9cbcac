/* reshard/formats/megatron/megatron_stages.c - see reshard/formats/megatron/megatron_stages.h. */
#include "reshard/formats/megatron/megatron_stages.h"

/* Layers of stages that have no number of their own, with embedding and loss where they count; -1:
 * there is no whole number. */
static int usual_layers(const struct megatron_args *a, int layers)
{
    const int left =
                  layers - a->first_layers - a->last_layers + a->counts_embedding + a->counts_loss,
              stages = a->pp - (a->first_layers > 0) - (a->last_layers > 0);

    if (stages <= 0)
        return stages == 0 && left == 0 ? 0 : -1;
    return left >= 0 && left % stages == 0 ? left / stages : -1;
}

/* Layers of a chunk; negative: they do not divide. */
static int count(const struct megatron_args *a, int layers, int pp_rank, int chunk)
{
    const bool first = pp_rank == 0, last = pp_rank == a->pp - 1;
    int n;

    if (a->layout.n > 0)
        return a->layout.layers[chunk * a->pp + pp_rank];
    n = usual_layers(a, layers);
    if (first && a->first_layers > 0)
        n = a->first_layers;
    if (last && a->last_layers > 0)
        n = a->last_layers;
    if (n < 0 || n % a->vpp != 0)
        return -1;
    n /= a->vpp;
    n -= first && chunk == 0 && a->counts_embedding;
    n -= last && chunk == a->vpp - 1 && a->counts_loss;
    return n;
}

tp_status megatron_stages_check(const struct megatron_args *args, int layers, const char *path,
                                struct tp_err *err)
{
    bool divides = args->layout.n > 0 || usual_layers(args, layers) >= 0;
    int64_t all = 0;

    for (int i = 0; i < args->layout.n; i++)
        all += args->layout.layers[i];
    if (args->layout.n > 0 && all != layers)
        return tp_fail(err, TP_E_USAGE,
                       "%s: its pipeline_model_parallel_layout has %lld layers, the model has %d",
                       path, (long long)all, layers);
    for (int pp_rank = 0; pp_rank < args->pp && divides; pp_rank++)
        for (int chunk = 0; chunk < args->vpp && divides; chunk++)
            divides = count(args, layers, pp_rank, chunk) >= 0;
    if (!divides)
        return tp_fail(err, TP_E_USAGE,
                       "%s: its args do not say how %d layers are divided among %d stages of %d "
                       "chunks (decoder_first_pipeline_num_layers %d, "
                       "decoder_last_pipeline_num_layers %d)",
                       path, layers, args->pp, args->vpp, args->first_layers, args->last_layers);
    return TP_OK;
}

struct megatron_stage_layers megatron_stages_find(const struct megatron_args *args, int layers,
                                                  int pp_rank, int chunk)
{
    struct megatron_stage_layers found = { 0, count(args, layers, pp_rank, chunk) };

    for (int c = 0; c <= chunk; c++)
        for (int p = 0; p < (c < chunk ? args->pp : pp_rank); p++)
            found.first += count(args, layers, p, c);
    return found;
}
