/* tests/unit/trainer_dataset.c - samples of a text, and the learning rate. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/random.h"
#include "trainer/data/dataset.h"
#include "trainer/lr_schedule.h"

/* A file of n random bytes below `vocab`; its name is in path. */
static void write_text(char path[32], struct rng *r, int n, int vocab)
{
    int fd;

    strcpy(path, "/tmp/trainer-data-XXXXXX");
    fd = mkstemp(path);
    cr_assert(fd >= 0);
    for (int i = 0; i < n; i++) {
        unsigned char c = (unsigned char)(rng_next(r) % (uint64_t)vocab);

        cr_assert_eq(write(fd, &c, 1), 1);
    }
    close(fd);
}

Test(trainer_dataset, sequence_g_is_window_g_modulo_their_number)
{
    struct rng r = rng_start("trainer_dataset/samples");

    for (int round = 0; round < 50; round++) {
        int seq = 1 + (int)(rng_next(&r) % 20), n = seq + 1 + (int)(rng_next(&r) % 300);
        int64_t first = (int64_t)(rng_next(&r) % 1000), samples = (n - 1) / seq;
        int32_t ids[5 * 20], targets[5 * 20];
        struct tp_err err = { 0 };
        struct dataset d;
        char path[32];

        write_text(path, &r, n, 256);
        cr_assert_eq(dataset_open(&d, path, seq, 256, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(d.samples, samples);
        cr_assert_eq(dataset_fetch(&d, first, 5, NULL, ids, targets, &err), TP_OK);
        for (int i = 0; i < 5; i++)
            for (int t = 0; t < seq; t++) {
                int64_t at = (first + i) % samples * seq + t;

                int64_t here[2];

                cr_assert_eq(token_file_read(&d.tokens, at, 2, here, &err), TP_OK);
                cr_expect_eq(ids[i * seq + t], here[0]);
                cr_expect_eq(targets[i * seq + t], here[1]);
            }
        dataset_close(&d);
        unlink(path);
    }
}

Test(trainer_dataset, too_few_bytes_and_bytes_beyond_the_vocabulary_are_refused)
{
    struct rng r = rng_start("trainer_dataset/refused");
    struct tp_err err = { 0 };
    struct dataset d;
    char path[32];

    write_text(path, &r, 64, 10);
    cr_expect_eq(dataset_open(&d, path, 64, 256, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "64 bytes") && strstr(err.msg, "65"), "%s", err.msg);
    cr_expect_eq(dataset_open(&d, path, 63, 10, &err), TP_OK);
    dataset_close(&d);
    cr_expect_eq(dataset_open(&d, path, 8, 5, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "offset"), "%s", err.msg);
    unlink(path);
}

Test(trainer_dataset, the_rate_rises_in_warmup_then_falls_to_its_minimum)
{
    const struct train_optimizer o = { .lr = 1e-3, .min_lr = 1e-4, .warmup = 5 };
    const double eps = 1e-15;

    cr_expect(fabs(lr_schedule_at(&o, 0, 20) - 2e-4) < eps);
    cr_expect(fabs(lr_schedule_at(&o, 4, 20) - 1e-3) < eps);
    cr_expect(fabs(lr_schedule_at(&o, 5, 20) - 1e-3) < eps);
    cr_expect(fabs(lr_schedule_at(&o, 20, 20) - 1e-4) < eps);
    for (int64_t s = 5; s < 20; s++)
        cr_expect(lr_schedule_at(&o, s + 1, 20) < lr_schedule_at(&o, s, 20));
    cr_expect(fabs(lr_schedule_at(&o, 4, 5) - 1e-3) < eps, "all steps are warmup");
    cr_expect(fabs(lr_schedule_at(&o, 5, 5) - 1e-3) < eps);
}
