/* tests/fuzz/run_journal.c - the journal of tp-run. An input whose first byte is even is the file;
 * else it is the JSON of one record, to which its frame is added. What is accepted is read as the
 * record of a run, written and read again. */
#include <isa-l.h>

#include "orchestrator/state/journal.h"
#include "orchestrator/state/run_record.h"
#include "tests/fuzz/fuzz.h"

static void write_framed(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 64);
    int n;

    fuzz_must(text != NULL, "no memory");
    n = sprintf(text, "%08x %010zu ", crc32_iscsi((unsigned char *)data, (int)size, 0), size);
    memcpy(text + n, data, size);
    text[(size_t)n + size] = '\n';
    fuzz_write("journal", text, (size_t)n + size + 1);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run_record record;
    json_t *last = NULL, *again;
    struct tp_err err = { 0 };
    tp_status st;

    if (fuzz_take(&data, &size) % 2)
        write_framed(data, size);
    else
        fuzz_write("journal", data, size);
    st = journal_peek(&last, fuzz_dir(), &err);
    fuzz_check_error(st, &err);
    if (st || !last)
        return 0;
    st = run_record_read(&record, journal_run_record(last), "journal", 1000, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK && (again = run_record_json(&record))) {
        fuzz_must(run_record_read(&record, again, "journal", 1000, &err) == TP_OK,
                  "what was written is refused");
        json_decref(again);
    }
    json_decref(last);
    return 0;
}
