/* reshard/reshard_report.c - see reshard/reshard_report.h. */
#include "reshard/reshard_report.h"

#include <stdio.h>
#include <string.h>

/* Sums and maxima over the processes. */
static tp_status add_up(struct reshard_report *r, const struct transfer_stats *s,
                        struct comm_control *control, struct tp_err *err)
{
    int64_t sums[3] = { s->bytes_read, s->bytes_written, s->tiles };
    tp_status st = TP_OK;

    if (control) {
        TP_TRY(control_sum_i64(control, sums, 3, err));
        TP_TRY(control_max_i64(control, &r->peak_bytes, 1, err));
    }
    r->bytes_read = sums[0];
    r->bytes_written = sums[1];
    r->tiles = sums[2];
    r->processes = control_size(control);
done:
    return st;
}

/* The payload of each rank's file. */
static tp_status fill_files(struct reshard_report *r, const struct reshard_outcome *o,
                            struct tp_err *err)
{
    const int world = spec_world(&o->to->spec);

    r->rank_bytes = arena_array(&r->arena, (size_t)world, sizeof *r->rank_bytes);
    if (!r->rank_bytes)
        return tp_fail(err, TP_E_NOMEM, "no memory for a report");
    for (int rank = 0; rank < world; rank++)
        r->rank_bytes[rank] = o->linked_rank_bytes ? o->linked_rank_bytes[rank]
                                                   : checkpoint_target_rank_bytes(o->target, rank);
    if (!o->linked_rank_bytes)
        return TP_OK;
    r->boxes_to = r->boxes_from; /* the files are the same */
    r->linked_files = o->from->manifest.n_shards;
    for (int rank = 0; rank < world; rank++)
        r->linked_bytes += r->rank_bytes[rank];
    r->digests_equal = o->to->n_tensors;
    return TP_OK;
}

static tp_status fill_kinds(struct reshard_report *r, const struct reshard_outcome *o,
                            struct tp_err *err)
{
    const int n = o->to->n_tensors;
    struct transfer_tensor_stats *stats = arena_array(&r->arena, (size_t)n, sizeof *stats);

    if (!stats)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
    if (transfer_plan_tensors(o->copy->plan, stats, err))
        return err->status;
    return reshard_kinds_list(&r->kinds, &r->n_kinds, o->to, stats, &r->arena, err);
}

tp_status reshard_report_fill(struct reshard_report *r, const struct reshard_outcome *o,
                              struct tp_err *err)
{
    const bool dry_run = o->dry_run;
    const struct copy_job *c = o->copy;
    tp_status st;

    memcpy(r->dir, o->from->dir, sizeof r->dir);
    snprintf(r->out, sizeof r->out, "%s", o->out);
    r->from = o->from->manifest.layout.spec;
    r->to = o->to->spec;
    r->kept = o->kept;
    r->step = o->from->manifest.step;
    r->n_tensors = o->to->n_tensors;
    r->boxes_from = c->transfer.from->n_extents;
    r->boxes_to = c->transfer.to->n_extents;
    r->planned = c->planned;
    r->base_bytes = c->memory.base_bytes;
    r->peak_bytes = dry_run ? c->memory.base_bytes + c->planned.buffer_bytes : memory_peak_bytes();
    r->digests_equal = c->digests_equal;
    r->casts = c->casts;
    r->device_bytes = c->done.device_bytes;
    r->host_rate = c->done.host_rate;
    r->device_rate = c->done.device_rate;
    r->zstd = o->zstd;
    r->stored_bytes = checkpoint_target_stored_bytes(o->target);
    r->cloned_bytes = o->clone->bytes - o->clone->not_cloned;
    r->resumed_tiles = o->resume->resumed_tiles;
    r->all_tiles = o->resume->tiles;
    r->damaged_chunks = o->resume->damaged_chunks;
    TP_TRY(fill_files(r, o, err));
    TP_TRY(add_up(r, dry_run && !o->linked_rank_bytes ? &c->planned : &c->done, o->control, err));
    r->bytes_read += o->clone->not_cloned; /* the file system refused, so they were copied */
    r->bytes_written += o->clone->not_cloned;
    if (dry_run)
        TP_TRY(fill_kinds(r, o, err));
done:
    return st;
}

int reshard_report_files(const struct reshard_report *r)
{
    int n = 0;

    for (int rank = 0; rank < spec_world(&r->to); rank++)
        n += r->rank_bytes[rank] > 0;
    return n;
}

void reshard_report_free(struct reshard_report *r)
{
    arena_free(&r->arena);
}
