/* tests/unit/orchestrator_run_record.c - the record of a run is read as it was written, also from a
 * journal of an earlier version.
 *
 * covers: orchestrator/state/step_times */
#include "orchestrator/state/run_record.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/arena.h"
#include "core/file.h"
#include "orchestrator/state/journal.h"

static struct run_record r, again;
static struct tp_err err;

static void write_and_read(double now)
{
    json_t *json = run_record_json(&r);

    cr_assert_eq(run_record_read(&again, json, "test", now, &err), TP_OK, "%s", err.msg);
    json_decref(json);
}

Test(run_record, every_field_is_read_as_it_was_written)
{
    struct run_config config = { .spec = spec_default() };

    cr_assert_eq(run_record_init(&r, &err), TP_OK);
    r.state = RUN_SAVE;
    r.attempt = 7;
    r.epoch = 12;
    cr_assert_eq(spec_parse(&r.config.spec, "tp4", &err), TP_OK);
    r.config.micro = 2;
    r.config.recompute = RECOMPUTE_FULL;
    r.open = r.loss_known = r.reports = r.stop = r.relaunch = r.continues = true;
    r.supervisor = 4711;
    r.supervisor_start = 99;
    r.best_step = 40;
    r.best_at_launch = 30;
    r.resumed_at = 20;
    r.saved = 35;
    r.fails_in_row = 2;
    r.done_steps = 100;
    r.bad_loss_step = 38;
    strcpy(r.resize, "tp2");
    strcpy(r.reason, "rank_killed");
    strcpy(r.message, "a sentence");
    strcpy(r.fault_reason, "rank_killed");
    strcpy(r.fault, "rank 3 was killed by signal 9");
    r.fault_wall = 1.7e9;
    r.fault_seconds = 2.5;
    r.fault_steps = 4;
    r.n_restarts = 2;
    r.restarts[0] = 10;
    r.restarts[1] = 20;
    r.n_bad = 1;
    r.bad[0].step = 35;
    r.bad[0].fails = 1;
    step_times_set(&r.findings.times, &config, 0.25);
    r.findings.gpus.bytes = INT64_C(80) << 30;
    r.findings.gpus.overstated = INT64_C(1) << 30;
    r.findings.gpus.refused = INT64_C(79) << 30;
    r.spent[TIME_TRAINING] = 3;
    r.spent[TIME_LOST] = 1;
    r.fault_at = 50;
    r.read_rate = 1e9;
    r.load_rate = 2e9;
    r.convert_rate = 3e9;
    r.restart_seconds = 1.5;
    write_and_read(1000);
    cr_expect_eq(memcmp(&r, &again, sizeof r), 0, "a field is not stored");
    cr_expect_lt(fabs(run_record_goodput(&again) - 0.75), 1e-12);
}

/* Times count from the boot. After a reboot the clock starts again at 0. */
Test(run_record, times_of_an_earlier_boot_are_forgotten)
{
    cr_assert_eq(run_record_init(&r, &err), TP_OK);
    r.n_restarts = 1;
    r.restarts[0] = r.fault_at = 90000;
    write_and_read(30);
    cr_expect(again.n_restarts == 0 && again.fault_at < 1);
}

Test(run_record, json_that_is_not_a_run_record_is_refused)
{
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"run_id\": \"x\", \"state\": \"plan\", \"layout\": \"tp1\"}",
        "{\"run_id\": \"0123456789abcdef\", \"state\": \"plan\", \"layout\": \"tp0\"}",
        "{\"run_id\": \"0123456789abcdef\", \"layout\": \"tp1\"}",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *json = json_loads(bad[i], 0, NULL);

        cr_expect_eq(run_record_read(&r, json, "test", 0, &err), TP_E_CORRUPT, "%s", bad[i]);
        json_decref(json);
    }
}

/* In earlier versions fields had other names, and the reason was a sentence. */
Test(run_record, a_record_of_an_earlier_version_is_read)
{
    struct run_config config = { .spec = spec_default() };
    struct arena arena = { 0 };
    char *text;
    size_t size;
    json_t *json;

    cr_assert_eq(
        file_read_own(&text, &size, "tests/fixture/journal-earlier", 1 << 16, &arena, &err), TP_OK,
        "%s", err.msg);
    json = json_loads(strchr(text, '{'), JSON_DISABLE_EOF_CHECK, NULL);
    cr_assert_not_null(json);
    cr_assert_eq(run_record_read(&r, journal_run_record(json), "test", 1e9, &err), TP_OK, "%s",
                 err.msg);
    cr_expect_str_eq(r.run_id, "113650ea5ec5daa0");
    cr_expect(r.state == RUN_STOPPED && r.stop && !r.open && r.reports && r.loss_known);
    cr_expect(r.attempt == 2 && r.best_step == 106 && r.best_at_launch == 56);
    cr_expect(r.supervisor == 7919 && r.supervisor_start == 1520868,
              "their old names begin with keeper");
    cr_expect_eq(r.bad_loss_step, -1, "its old name is nan_step");
    cr_expect_str_eq(r.reason, "");
    cr_expect_str_eq(r.message, "saved and stopped", "its old name is reason");
    cr_expect_eq(r.n_restarts, 1);
    cr_expect_lt(fabs(step_times_get(&r.findings.times, &config) - 0.021134328), 1e-9);
    cr_expect_lt(fabs(step_times_longest(&r.findings.times) - 0.021762406), 1e-9);
    cr_expect_lt(fabs(r.spent[TIME_LOST] - 1.107723), 1e-6);
    json_decref(json);
    arena_free(&arena);
}

Test(run_record, step_times_beyond_the_capacity_are_dropped)
{
    struct step_times t = { 0 };
    struct run_config config = { .spec = spec_default() };

    for (int i = 1; i <= STEP_TIMES_MAX + 5; i++) {
        config.spec.dp = i;
        step_times_set(&t, &config, i);
    }
    cr_expect_eq(t.n, STEP_TIMES_MAX);
    config.spec.dp = 1;
    step_times_set(&t, &config, 0.5);
    cr_expect_eq(step_times_get(&t, &config), 0.5, "a known config is still set");
    config.spec.dp = STEP_TIMES_MAX + 1;
    cr_expect_eq(step_times_get(&t, &config), 0);
}
