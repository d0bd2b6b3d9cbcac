/* tests/fuzz/transfer_journal.c - the journal of tp-reshard. An input whose first byte is even is
 * the file; else it is a list of payloads, each with a byte for its length, to which heads and
 * checksums are added. */
#include "reshard/transfer_journal.h"
#include "ckpt/crc.h"
#include "reshard/record_log.h"
#include "tests/fuzz/fuzz.h"

enum { WORDS = 16, KIND_HEAD = 0x31747074, KIND_RECORD = 0x72747074 };

static const struct transfer_journal_head expected = { .identity_sha256 = "1",
                                                       .layout_sha256 = "2",
                                                       .thread_bytes = 100,
                                                       .n_tiles = 50,
                                                       .n_words = WORDS };

/* Append a record to a buffer. Returns its end. */
static unsigned char *put(unsigned char *to, uint32_t kind, uint32_t *crc, const void *payload,
                          uint64_t bytes)
{
    memcpy(to, &kind, 4);
    memcpy(to + 4, crc, 4);
    memcpy(to + 8, &bytes, 8);
    memcpy(to + RECORD_HEAD, payload, bytes);
    *crc = crc32c(to, RECORD_HEAD + bytes);
    memcpy(to + RECORD_HEAD + bytes, crc, 4);
    return to + RECORD_HEAD + bytes + RECORD_TAIL;
}

static void write_records(const uint8_t *data, size_t size)
{
    unsigned char *file = malloc(sizeof expected + 64 + 32 * (size + 1)), *end;
    uint32_t crc = 0;

    fuzz_must(file != NULL, "no memory");
    end = put(file, KIND_HEAD, &crc, &expected, sizeof expected);
    while (size > 0) {
        size_t n = fuzz_take(&data, &size);

        n = n < size ? n : size;
        end = put(end, KIND_RECORD, &crc, data, n);
        data += n;
        size -= n;
    }
    fuzz_write(TRANSFER_JOURNAL_FILE, file, (size_t)(end - file));
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t words[WORDS] = { 0 };
    const struct reshard_sums sums = { words, WORDS };
    const struct transfer_journal_subject subject = { fuzz_dir(), &expected, &sums, 1 };
    struct transfer_journal *j = NULL;
    struct transfer_journal_head head;
    struct tp_err err = { 0 };
    int64_t done = 0;
    tp_status st;

    if (fuzz_take(&data, &size) % 2)
        write_records(data, size);
    else
        fuzz_write(TRANSFER_JOURNAL_FILE, data, size);
    fuzz_check_error(transfer_journal_peek(&head, fuzz_dir(), &err), &err);
    err = (struct tp_err){ 0 };
    st = transfer_journal_resume(&j, &done, &subject, &err);
    fuzz_check_error(st, &err);
    fuzz_must(st || (done >= 0 && done <= expected.n_tiles), "more tiles than there are");
    transfer_journal_close(j);
    return 0;
}
