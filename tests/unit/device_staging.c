/*
 * tests/unit/device_staging.c - copies between host and device memory in pieces, on a device that
 * copies at once and on one that copies late.
 */
#include "device/staging.h"

#include <criterion/criterion.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "tests/deferred/deferred.h"
#include "tests/unit/device_read.h"

enum { BUFFER = 64, MOST = 5 * BUFFER };

static struct staging open_staging(struct device **d, struct device_queue **q, bool late)
{
    const struct deferred_options late_options = { .threads = 1, .seed = 3 };
    const struct cpu_options options = { .threads = 1 };
    struct staging s;
    struct tp_err err = { 0 };

    cr_assert_eq(late ? deferred_device_open(d, &late_options, &err)
                      : cpu_device_open(d, &options, &err),
                 TP_OK, "%s", err.msg);
    cr_assert_eq(device_queue_open(*d, q, DEVICE_QUEUE_COPY, &err), TP_OK);
    cr_assert_eq(staging_open(&s, *q, BUFFER, &err), TP_OK);
    return s;
}

static void check_lengths(bool late)
{
    struct device *d;
    struct device_queue *q;
    struct staging s = open_staging(&d, &q, late);
    char from[MOST], to[MOST + 1];
    struct tp_err err = { 0 };
    void *memory;

    cr_assert_eq(device_alloc(d, &memory, MOST, &err), TP_OK);
    for (int n = 0; n <= MOST; n++) {
        for (int i = 0; i < n; i++)
            from[i] = (char)(i * n);
        memset(to, 1, sizeof to);
        cr_assert_eq(staging_put(&s, memory, from, n, &err), TP_OK);
        cr_assert_eq(staging_finish(&s, &err), TP_OK);
        cr_assert_eq(device_read(&s, to, memory, n, &err), TP_OK);
        cr_assert_eq(memcmp(to, from, (size_t)n), 0, "%d bytes", n);
        cr_assert_eq(to[n], 1);
    }
    staging_close(&s);
    device_queue_close(q);
    device_close(d);
}

Test(staging, every_length_is_copied_there_and_back)
{
    check_lengths(false);
    check_lengths(true);
}

static void check_buffers(bool late)
{
    struct device *d;
    struct device_queue *q;
    struct staging s = open_staging(&d, &q, late);
    struct tp_err err = { 0 };
    char *memory, got[4];
    void *buffer, *p;

    cr_assert_eq(device_alloc(d, &p, 100, &err), TP_OK);
    memory = p;
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(staging_buffer(&s, &buffer, &err), TP_OK);
        memset(buffer, 'a' + i, 4);
        staging_send(&s, memory + 4 * i, 4);
    }
    cr_assert_eq(staging_finish(&s, &err), TP_OK);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(device_read(&s, got, memory + 4 * i, 4, &err), TP_OK);
        cr_assert(got[0] == 'a' + i && got[3] == 'a' + i);
    }
    staging_close(&s);
    device_queue_close(q);
    device_close(d);
}

Test(staging, a_buffer_is_filled_and_sent)
{
    check_buffers(false);
    check_buffers(true);
}

static void check_failure(bool late)
{
    struct device *d;
    struct device_queue *q;
    struct staging s = open_staging(&d, &q, late);
    struct tp_err err = { 0 };
    char byte = 0;

    tp_fail(&err, TP_E_COMM, "a rank is gone");
    device_fail(d, &err);
    cr_assert_eq(staging_put(&s, &byte, &byte, 1, &err), TP_E_COMM);
    cr_assert_eq(staging_finish(&s, &err), TP_E_COMM);
    staging_close(&s);
    device_queue_close(q);
    device_close(d);
}

Test(staging, the_devices_failure_is_returned)
{
    check_failure(false);
    check_failure(true);
}
