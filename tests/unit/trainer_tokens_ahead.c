/*
 * tests/unit/trainer_tokens_ahead.c - a step uses the tokens that were fetched while the one before
 * it ran, and they are the ones that it would fetch itself.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/random_model.h"
#include "tests/unit/trainer_ranks.h"
#include "trainer/step.h"

enum { STEPS = 5, BYTES = 4000 };

/* In a rank. The losses of all steps, and the failure that ended them. */
struct steps {
    bool ahead;
    int cut_before; /* the data is cut before this step; -1: never */
    const char *path;
    struct results {
        int done;
        double losses[STEPS];
        struct tp_err err;
    } * results; /* shared with the test */
};

/* The CPU device computes in the calling thread, so its trainer has no room for tokens of the next
 * step. */
static int run_steps(struct trainer *t, void *ctx)
{
    const struct steps *s = ctx;
    const struct train_config *c = t->config;
    struct results *r = s->results;
    struct step_result result;

    cr_assert_null(t->ahead.tokens);
    if (s->ahead) {
        t->ahead.n = 2 * c->global_batch_size * c->seq_length;
        t->ahead.tokens = arena_array(&t->arena, (size_t)t->ahead.n, sizeof(int32_t));
    }
    for (int i = 0; i < STEPS; i++) {
        if (i == s->cut_before && truncate(s->path, 0) != 0)
            return wrong_unless(0, "the data cannot be cut");
        if (step_run(t, &result, &r->err))
            break;
        r->losses[r->done++] = result.loss_share;
    }
    return 0;
}

static void write_data(char path[40], struct rng *r, int64_t vocab)
{
    int fd;

    snprintf(path, 40, "/tmp/tokens-ahead-XXXXXX");
    fd = mkstemp(path);
    for (int i = 0; i < BYTES; i++) {
        unsigned char c = (unsigned char)(rng_next(r) % (uint64_t)(vocab < 256 ? vocab : 256));

        cr_assert_eq(write(fd, &c, 1), 1);
    }
    close(fd);
}

static struct results run(struct rng *r, bool ahead, int cut_before)
{
    struct results *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0),
                   results;
    struct model m = random_model(r);
    struct train_config c = train_config_default();
    char path[40];
    struct steps s = { ahead, cut_before, path, shared };

    m.family = MODEL_LLAMA;
    write_data(path, r, m.vocab);
    c.data_path = path;
    c.model_path = "a random model";
    c.steps = STEPS;
    c.seq_length = 8;
    c.micro_batch_size = 2;
    c.global_batch_size = 4;
    c.spec = (struct spec){ .tp = 1, .pp = 1, .vpp = 1, .dp = 1, .cp = 1, .ep = 1 };
    cr_assert_eq(run_trainers(&c, &m, run_steps, &s), 0);
    results = *shared;
    munmap(shared, sizeof *shared);
    unlink(path);
    return results;
}

Test(trainer_tokens_ahead, losses_are_the_same)
{
    struct rng r = rng_start("tokens_ahead/same"), again = r;
    struct results without = run(&r, false, -1), with = run(&again, true, -1);

    cr_assert_eq(without.done, STEPS, "%s", without.err.msg);
    cr_assert_eq(with.done, STEPS, "%s", with.err.msg);
    cr_assert_arr_eq(with.losses, without.losses, sizeof with.losses);
}

/* Data that is cut while a step runs: the next step has its tokens, and the one after it fails. */
Test(trainer_tokens_ahead, the_step_that_needs_what_is_missing_fails)
{
    struct rng r = rng_start("tokens_ahead/cut");

    for (int ahead = 0; ahead < 2; ahead++) {
        struct results found = run(&r, ahead, 2);

        cr_assert_eq(found.done, 2 + ahead);
        cr_assert_eq(found.err.status, TP_E_CORRUPT);
        cr_assert(strstr(found.err.msg, "it was cut while it was read"), "%s", found.err.msg);
    }
}

Test(trainer_tokens_ahead, tokens_are_taken_once_and_only_by_their_step)
{
    int32_t tokens[2] = { 7, 8 }, out[2] = { 0 };
    struct tokens_ahead a = { .tokens = tokens, .n = 2, .first = 40, .is_full = true };

    cr_assert(tokens_ahead_take(&a, 40, out) && out[0] == 7 && out[1] == 8);
    cr_assert_not(tokens_ahead_take(&a, 40, out));
    a.is_full = true;
    cr_assert_not(tokens_ahead_take(&a, 44, out));
    cr_assert_not(tokens_ahead_take(&a, 40, out));
}
