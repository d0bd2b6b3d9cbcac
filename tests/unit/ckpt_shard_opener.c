/* tests/unit/ckpt_shard_opener.c - shards are opened in order, and no failure is taken for a shard.
 */
#include "core/thread_pool.h"

#include <stdbool.h>

/* The opener of this program has no memory for its threads when the test says so. */
static bool no_memory;

static tp_status run_or_fail(thread_pool_fn fn, void *ctx, int64_t n_items, int n_workers,
                             struct tp_err *err)
{
    if (no_memory)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d threads", n_workers);
    return thread_pool_run(fn, ctx, n_items, n_workers, err);
}

#define thread_pool_run run_or_fail
#include "ckpt/shard_opener.c"
#undef thread_pool_run

#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

TestSuite(shard_opener, .init = temp_dir_make, .fini = temp_dir_remove);

Test(shard_opener, without_memory_for_threads_it_fails_and_opens_the_same_shard_later)
{
    const char *dir = temp_path("step-00000001");
    struct shard_opener *o = NULL;
    struct shard_reader *shard;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct manifest m;

    tiny_ckpt(temp_path(""), "tp2", 1, 7, DTYPE_F32);
    cr_assert_eq(step_load(&m, dir, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(m.n_shards, 2);
    cr_assert_eq(shard_opener_new(&o, dir, &m, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < m.n_shards; i++) {
        no_memory = true;
        shard = NULL;
        cr_assert_eq(shard_opener_next(o, &shard, &err), TP_E_NOMEM, "shard %d", i);
        cr_expect_null(shard);
        no_memory = false;
        cr_assert_eq(shard_opener_next(o, &shard, &err), TP_OK, "%s", err.msg);
        cr_assert_not_null(shard);
        shard_reader_close(shard);
    }
    shard_opener_free(o);
    arena_free(&arena);
}
