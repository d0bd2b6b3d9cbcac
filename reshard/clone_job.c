/* reshard/clone_job.c - see reshard/clone_job.h. */
#include "reshard/clone_job.h"

#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/vfs.h>

#include "core/file.h"
#include "core/thread_pool.h"
#include "reshard/engine/extent_index.h"
#include "storage/location.h"

/* A smaller tensor is copied: that is as fast, and checks it. */
enum { TENSOR_BYTES_MIN = 64 << 10 };

bool clone_job_possible(const char *from, const char *to)
{
    struct statfs fs;

    if (location_is_remote(from) || location_is_remote(to) || !file_same_system(from, to) ||
        statfs(from, &fs) != 0)
        return false;
    return fs.f_type == XFS_SUPER_MAGIC || fs.f_type == BTRFS_SUPER_MAGIC;
}

/* ---- choosing ---- */

/* The extent of the target that extent `from` of the source can be cloned into; -1: none. */
static int target_of(const struct checkpoint_source *source, int from,
                     const struct extent_index *to, const struct layout *layout)
{
    const struct shard_clone c = checkpoint_source_dataset(source, from);
    const int tensor = checkpoint_source_endpoint(source)->extents[from].tensor;
    int *found = calloc((size_t)extent_index_count(to, tensor) + 1, sizeof *found), extent = -1;

    if (found && extent_index_find(to, tensor, &c.box, found) == 1 &&
        shard_clone_fits(&c, &layout->tensors[tensor], extent_index_box(to, tensor, found[0])))
        extent = extent_index_number(to, tensor, found[0]);
    free(found);
    return extent;
}

static bool is_candidate(const struct reshard_endpoint *source, const struct layout *layout, int i)
{
    const struct tensor *t = &layout->tensors[i];
    struct box whole = box_whole(t->ndim, t->shape);

    return source->dtypes[i] == t->dtype &&
           box_elements(&whole) * dtype_bytes(t->dtype) >= TENSOR_BYTES_MIN;
}

/* Find the target of every box, and give up the tensors of those that have none. */
static void choose(struct clone_job *job, const struct checkpoint_source *source,
                   const struct extent_index *to, const struct layout *layout)
{
    const struct reshard_endpoint *from = checkpoint_source_endpoint(source);

    for (int i = 0; i < layout->n_tensors; i++)
        job->tensors[i] = is_candidate(from, layout, i);
    for (int i = 0; i < from->n_extents; i++) {
        const int tensor = from->extents[i].tensor;

        job->to[i] = job->tensors[tensor] ? target_of(source, i, to, layout) : -1;
        if (job->to[i] < 0)
            job->tensors[tensor] = false;
    }
    for (int i = 0; i < from->n_extents; i++) {
        const int tensor = from->extents[i].tensor;

        if (!job->tensors[tensor])
            continue;
        job->from[job->n] = i;
        job->to[job->n++] = job->to[i];
        job->bytes +=
            box_elements(&from->extents[i].box) * dtype_bytes(layout->tensors[tensor].dtype);
    }
    for (int i = 0; i < layout->n_tensors; i++)
        job->n_tensors += job->tensors[i];
}

tp_status clone_job_plan(struct clone_job *job, const struct checkpoint_source *source,
                         const struct checkpoint_target *target,
                         const struct reshard_tensor *tensors, const struct layout *layout,
                         struct tp_err *err)
{
    const size_t n = (size_t)checkpoint_source_endpoint(source)->n_extents + 1;
    struct extent_index *to = NULL;
    tp_status st;

    *job = (struct clone_job){ .tensors = calloc((size_t)layout->n_tensors + 1, sizeof(bool)),
                               .from = calloc(n, sizeof *job->from),
                               .to = calloc(n, sizeof *job->to) };
    if (!job->tensors || !job->from || !job->to)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan of %d tensors", layout->n_tensors);
    TP_TRY(extent_index_make(&to, checkpoint_target_endpoint(target), tensors, layout->n_tensors,
                             err));
    choose(job, source, to, layout);
done:
    extent_index_free(to);
    return st;
}

void clone_job_free(struct clone_job *job)
{
    free(job->tensors);
    free(job->from);
    free(job->to);
    *job = (struct clone_job){ .tensors = NULL };
}

/* ---- cloning ---- */

struct clone_run {
    const struct clone_job *job;
    const struct checkpoint_source *source;
    struct checkpoint_target *target;
    struct progress *progress;
    atomic_llong not_cloned;
};

/* A thread_pool_fn: clone box number `item`. */
static tp_status clone_box(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct clone_run *run = ctx;
    const int from = run->job->from[item];
    const struct shard_clone c = checkpoint_source_dataset(run->source, from);
    const struct reshard_endpoint *e = checkpoint_source_endpoint(run->source);
    const int64_t bytes = box_elements(&c.box) * dtype_bytes(e->dtypes[e->extents[from].tensor]);
    bool cloned = false;
    tp_status st = checkpoint_target_clone(run->target, run->job->to[item], &c, &cloned, err);

    (void)worker;
    if (!cloned)
        atomic_fetch_add(&run->not_cloned, bytes);
    progress_add_as(run->progress, cloned ? PROGRESS_CLONED : PROGRESS_COPIED, bytes);
    return st;
}

tp_status clone_job_run(struct clone_job *job, const struct checkpoint_source *source,
                        struct checkpoint_target *target, int threads, struct progress *progress,
                        struct tp_err *err)
{
    struct clone_run run = { .job = job, .source = source, .target = target, .progress = progress };
    tp_status st;

    if (job->n > 0)
        progress_action(progress, "cloning", PROGRESS_CLONED, job->bytes);
    st = thread_pool_run(clone_box, &run, job->n, threads, err);

    job->not_cloned = atomic_load(&run.not_cloned);
    return st;
}
