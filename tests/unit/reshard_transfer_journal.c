/*
 * tests/unit/reshard_transfer_journal.c - a journal restores the state of its last good record,
 * also from a damaged file.
 *
 * covers: reshard/record_log
 */
#include "reshard/transfer_journal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reshard/record_log.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

enum { ARRAYS = 3, WORDS = 40, RECORDS = 6, TILES = 1000, FILE_MAX = 1 << 16 };

TestSuite(transfer_journal, .init = temp_dir_make, .fini = temp_dir_remove);

/* The sums of a transfer, now and at each record. */
struct example {
    struct transfer_journal_head head;
    uint64_t words[ARRAYS][WORDS];
    struct reshard_sums sums[ARRAYS];
    int64_t done[RECORDS + 1]; /* record 0 is the new journal */
    uint64_t then[RECORDS + 1][ARRAYS][WORDS];
    int64_t end[RECORDS + 1]; /* length of the file */
};

static struct transfer_journal_subject subject_of(const struct example *x)
{
    return (struct transfer_journal_subject){ temp_dir, &x->head, x->sums, ARRAYS };
}

static void example_init(struct example *x)
{
    *x = (struct example){ .head = { .thread_bytes = 4096, .n_tiles = TILES, .made_root = true } };
    memset(x->head.identity_sha256, 'a', SHA256_TEXT - 1);
    memset(x->head.layout_sha256, 'b', SHA256_TEXT - 1);
    for (int i = 0; i < ARRAYS; i++) /* of different lengths, one of them empty */
        x->sums[i] = (struct reshard_sums){ x->words[i], i == 1 ? 0 : WORDS - i };
}

static const char *journal_path(void)
{
    return temp_path(TRANSFER_JOURNAL_FILE);
}

static int64_t journal_bytes(void)
{
    struct stat sb;

    cr_assert_eq(stat(journal_path(), &sb), 0);
    return sb.st_size;
}

/* Change some, none or all words. A word may return to an earlier value. */
static void change(struct example *x, struct rng *r)
{
    int64_t one_of = rng_int(r, 1, 8);

    for (int i = 0; i < ARRAYS; i++)
        for (int64_t k = 0; k < x->sums[i].n; k++)
            if (rng_int(r, 1, one_of) == 1)
                x->words[i][k] = rng_int(r, 0, 2) ? rng_next(r) : 0;
}

static void append(struct example *x, struct transfer_journal *j, int record, struct rng *r)
{
    struct tp_err err = { 0 };

    change(x, r);
    x->done[record] = x->done[record - 1] + rng_int(r, record == RECORDS, 9);
    cr_assert_eq(transfer_journal_append(j, x->done[record], &err), TP_OK, "%s", err.msg);
    memcpy(x->then[record], x->words, sizeof x->words);
    x->end[record] = journal_bytes();
}

/* Write a journal of RECORDS records. */
static void write_journal(struct example *x, struct rng *r)
{
    struct transfer_journal_subject s;
    struct transfer_journal *j = NULL;
    struct tp_err err = { 0 };

    example_init(x);
    s = subject_of(x);
    cr_assert_eq(transfer_journal_create(&j, &s, &err), TP_OK, "%s", err.msg);
    x->end[0] = journal_bytes();
    for (int i = 1; i <= RECORDS; i++)
        append(x, j, i, r);
    transfer_journal_close(j);
}

static tp_status resume(struct transfer_journal **j, int64_t *done, const struct example *x,
                        struct tp_err *err)
{
    const struct transfer_journal_subject s = subject_of(x);

    *j = NULL;
    *done = -1;
    return transfer_journal_resume(j, done, &s, err);
}

/* Resume with sums of zero. The state must be that of record `record`. */
static struct transfer_journal *must_resume(struct example *x, int record)
{
    struct transfer_journal *j;
    struct tp_err err = { 0 };
    int64_t done;

    memset(x->words, 0, sizeof x->words);
    cr_assert_eq(resume(&j, &done, x, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(done, x->done[record]);
    cr_assert_eq(memcmp(x->words, x->then[record], sizeof x->words), 0, "record %d", record);
    return j;
}

static size_t read_journal(unsigned char data[FILE_MAX])
{
    int fd = open(journal_path(), O_RDONLY);
    ssize_t n = read(fd, data, FILE_MAX);

    cr_assert(n > 0 && n < FILE_MAX);
    close(fd);
    return (size_t)n;
}

static void replace_journal(const unsigned char *data, size_t n)
{
    unlink(journal_path());
    temp_write(TRANSFER_JOURNAL_FILE, data, n);
}

Test(transfer_journal, resumes_with_the_sums_of_its_last_record)
{
    struct rng r = rng_start("transfer_journal/resume");
    static struct example x;

    for (int round = 0; round < 50; round++) {
        write_journal(&x, &r);
        transfer_journal_close(must_resume(&x, RECORDS));
        cr_assert_eq(unlink(journal_path()), 0);
    }
}

Test(transfer_journal, a_resumed_journal_continues_with_the_next_record)
{
    struct rng r = rng_start("transfer_journal/continue");
    static struct example x;
    struct transfer_journal *j;

    write_journal(&x, &r);
    cr_assert_eq(truncate(journal_path(), x.end[3] - 1), 0); /* record 3 was not completed */
    j = must_resume(&x, 2);
    append(&x, j, 3, &r);
    append(&x, j, 4, &r);
    transfer_journal_close(j);
    transfer_journal_close(must_resume(&x, 4));
}

Test(transfer_journal, a_truncated_file_is_valid_up_to_its_last_complete_record)
{
    struct rng r = rng_start("transfer_journal/truncated");
    static struct example x;
    static unsigned char data[FILE_MAX];
    struct tp_err err = { 0 };
    size_t size;
    int record = -1;

    write_journal(&x, &r);
    size = read_journal(data);
    for (size_t n = 0; n <= size; n++) {
        struct transfer_journal *j;
        int64_t done;

        replace_journal(data, n);
        if (record < RECORDS && (int64_t)n >= x.end[record + 1])
            record++;
        if (record < 0)
            cr_assert_eq(resume(&j, &done, &x, &err), TP_E_CORRUPT, "%zu bytes", n);
        else
            transfer_journal_close(must_resume(&x, record));
    }
    cr_assert_eq(record, RECORDS);
}

Test(transfer_journal, a_damaged_record_and_those_after_it_are_not_used)
{
    struct rng r = rng_start("transfer_journal/damaged");
    static struct example x;
    static unsigned char data[FILE_MAX];
    struct tp_err err = { 0 };
    size_t size;

    write_journal(&x, &r);
    size = read_journal(data);
    for (size_t at = 0; at < size; at++) {
        unsigned char good = data[at];
        struct transfer_journal *j;
        int64_t done;
        int record = -1;

        data[at] ^= (unsigned char)(1 << rng_int(&r, 0, 7));
        replace_journal(data, size);
        data[at] = good;
        while (record < RECORDS && (int64_t)at >= x.end[record + 1])
            record++;
        if (record < 0)
            cr_assert_eq(resume(&j, &done, &x, &err), TP_E_CORRUPT, "byte %zu", at);
        else
            transfer_journal_close(must_resume(&x, record));
    }
}

Test(transfer_journal, a_record_that_does_not_follow_the_one_before_is_not_used)
{
    struct rng r = rng_start("transfer_journal/sequence");
    static struct example x;
    static unsigned char data[FILE_MAX];
    size_t size;

    write_journal(&x, &r);
    size = read_journal(data);
    memmove(data + x.end[2], data + x.end[3], size - (size_t)x.end[3]); /* record 3 is missing */
    replace_journal(data, size - (size_t)(x.end[3] - x.end[2]));
    transfer_journal_close(must_resume(&x, 2));
}

Test(transfer_journal, a_journal_of_another_transfer_is_refused_and_changes_nothing)
{
    struct rng r = rng_start("transfer_journal/other");
    static struct example x, other;
    uint64_t before[ARRAYS][WORDS];

    write_journal(&x, &r);
    for (int i = 0; i < 5; i++) {
        struct transfer_journal *j;
        struct tp_err err = { 0 };
        int64_t done;

        example_init(&other);
        change(&other, &r);
        memcpy(before, other.words, sizeof before);
        if (i == 0)
            other.head.identity_sha256[5] = 'x';
        else if (i == 1)
            other.head.layout_sha256[63] = 'x';
        else if (i == 2)
            other.head.thread_bytes++;
        else if (i == 3)
            other.head.n_tiles--;
        else
            other.sums[0].n--;
        cr_expect_eq(resume(&j, &done, &other, &err), TP_E_CORRUPT, "case %d", i);
        cr_expect(strstr(err.msg, "another transfer"), "%s", err.msg);
        cr_expect_null(j);
        cr_expect_eq(memcmp(before, other.words, sizeof before), 0, "case %d", i);
    }
    transfer_journal_close(must_resume(&x, RECORDS));
}

/* Append a record with this payload and the right checksum. */
static void forge(const struct example *x, const void *payload, uint64_t bytes)
{
    enum { KIND_RECORD = 0x72747074 };
    struct record_log log = { .fd = open(journal_path(), O_RDWR) };
    unsigned char buf[RECORD_HEAD + 256 + RECORD_TAIL];
    unsigned char data[FILE_MAX];
    struct tp_err err = { 0 };
    size_t size = read_journal(data);

    cr_assert(log.fd >= 0 && bytes <= 256);
    cr_assert_eq((int64_t)size, x->end[RECORDS]);
    log.end = x->end[RECORDS];
    memcpy(&log.crc, data + size - RECORD_TAIL, sizeof log.crc); /* a record ends with its CRC */
    memcpy(buf + RECORD_HEAD, payload, bytes);
    cr_assert_eq(record_log_append(&log, KIND_RECORD, buf, bytes, &err), TP_OK);
    close(log.fd);
}

Test(transfer_journal, records_that_do_not_fit_are_not_used)
{
    enum { N_WORDS = WORDS + WORDS - 2 };
    const int64_t cases[][5] = {
        { TILES + 1 },                 /* more tiles than the transfer has */
        { 0 },                         /* fewer than the record before */
        { TILES, N_WORDS, 1, 7 },      /* a word after the last */
        { TILES, -1, 1, 7 },           /* before the first */
        { TILES, N_WORDS - 1, 2, 7 },  /* one word past the end */
        { TILES, 0, INT64_MAX, 7 },    /* more words than the record has */
        { TILES, 0, 3, 7 },            /* the same */
        { TILES, 0, (1LL << 61) + 1 }, /* a size that overflows */
        { TILES },                     /* no payload */
        { TILES },                     /* half a number of tiles */
        { TILES, 0 },                  /* half a run */
    };
    const uint64_t bytes[] = { 8, 8, 32, 32, 32, 32, 32, 24, 0, 4, 16 };
    const int64_t good[] = { TILES, N_WORDS - 1, 1, 7 };
    struct rng r = rng_start("transfer_journal/forged");
    static struct example x;
    static unsigned char data[FILE_MAX];
    struct transfer_journal *j;
    struct tp_err err = { 0 };
    int64_t done;
    size_t size;

    write_journal(&x, &r);
    cr_assert_gt(x.done[RECORDS], 0);
    size = read_journal(data);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        replace_journal(data, size);
        forge(&x, cases[i], bytes[i]);
        j = must_resume(&x, RECORDS);
        cr_assert_eq(transfer_journal_append(j, TILES, &err), TP_OK, "%s", err.msg);
        transfer_journal_close(j);
        cr_assert_eq(resume(&j, &done, &x, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(done, TILES, "the next record replaces the one that did not fit");
        transfer_journal_close(j);
    }
    replace_journal(data, size);
    forge(&x, good, sizeof good); /* a valid forged record is accepted */
    x.done[RECORDS] = TILES;
    x.then[RECORDS][ARRAYS - 1][WORDS - 3] = 7;
    transfer_journal_close(must_resume(&x, RECORDS));
}

Test(transfer_journal, the_head_can_be_read_without_the_records)
{
    struct rng r = rng_start("transfer_journal/head");
    struct transfer_journal_head head = { .n_tiles = 0 };
    static struct example x;
    struct tp_err err = { 0 };

    cr_assert_eq(transfer_journal_peek(&head, temp_dir, &err), TP_E_NOTFOUND);
    write_journal(&x, &r);
    cr_assert_eq(transfer_journal_peek(&head, temp_dir, &err), TP_OK, "%s", err.msg);
    cr_assert_str_eq(head.identity_sha256, x.head.identity_sha256);
    cr_assert_str_eq(head.layout_sha256, x.head.layout_sha256);
    cr_assert(head.thread_bytes == 4096 && head.n_tiles == TILES && head.made_root);
    cr_assert_eq(head.n_words, WORDS + WORDS - 2);
}

Test(transfer_journal, files_that_are_not_journals_are_refused_without_blocking, .timeout = 60)
{
    struct transfer_journal_head head;
    struct record_log log = { .end = 0 };
    unsigned char buf[RECORD_HEAD + 64 + RECORD_TAIL] = { 0 };
    struct tp_err err = { 0 };

    cr_assert_eq(mkfifo(journal_path(), 0666), 0);
    cr_expect_eq(transfer_journal_peek(&head, temp_dir, &err), TP_E_CORRUPT);
    unlink(journal_path());
    cr_assert_eq(symlink("/etc/passwd", journal_path()), 0);
    cr_expect_eq(transfer_journal_peek(&head, temp_dir, &err), TP_E_IO);
    unlink(journal_path());
    temp_write(TRANSFER_JOURNAL_FILE, "not a journal, but longer than the head of one", 46);
    cr_expect_eq(transfer_journal_peek(&head, temp_dir, &err), TP_E_CORRUPT);
    unlink(journal_path());

    /* a whole head of another size, as another version may have written it */
    log.fd = open(journal_path(), O_RDWR | O_CREAT, 0666);
    cr_assert_eq(record_log_append(&log, 0x31747074, buf, 64, &err), TP_OK);
    close(log.fd);
    cr_expect_eq(transfer_journal_peek(&head, temp_dir, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "another version"), "%s", err.msg);
}

Test(transfer_journal, the_sums_can_be_put_back_to_the_last_record)
{
    struct rng r = rng_start("transfer_journal/put_back");
    struct transfer_journal_subject s;
    struct transfer_journal *j = NULL;
    static struct example x;
    struct tp_err err = { 0 };

    example_init(&x);
    s = subject_of(&x);
    cr_assert_eq(transfer_journal_create(&j, &s, &err), TP_OK, "%s", err.msg);
    append(&x, j, 1, &r);
    for (int i = 0; i < ARRAYS; i++)
        for (int64_t k = 0; k < x.sums[i].n; k++)
            x.words[i][k]++;
    transfer_journal_restore(j);
    for (int i = 0; i < ARRAYS; i++)
        cr_expect_arr_eq(x.words[i], x.then[1][i], (size_t)x.sums[i].n * sizeof(uint64_t));
    transfer_journal_close(j);
}
