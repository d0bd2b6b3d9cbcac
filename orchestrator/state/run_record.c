/* orchestrator/state/run_record.c - see orchestrator/state/run_record.h. */
#include "orchestrator/state/run_record.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

const char *run_state_name(enum run_state s)
{
    static const char *const names[RUN_STATES] = { "plan",  "reshard", "launch", "init",
                                                   "train", "save",    "drain",  "diagnose",
                                                   "done",  "stopped", "failed" };

    return s < RUN_STATES ? names[s] : "?";
}

bool run_state_is_final(enum run_state s)
{
    return s >= RUN_DONE;
}

/* The plain fields. This table is used for writing and reading. */
enum field_kind { FIELD_INT, FIELD_DOUBLE, FIELD_BOOL, FIELD_RECOMPUTE };

static const struct run_record_field {
    const char *name, *old_name; /* old_name: in journals of earlier versions; NULL: the same */
    enum field_kind kind;
    size_t offset;
} FIELDS[] = {
#define AT(f) offsetof(struct run_record, f)
    { "attempt", NULL, FIELD_INT, AT(attempt) },
    { "epoch", NULL, FIELD_INT, AT(epoch) },
    { "supervisor", "keeper", FIELD_INT, AT(supervisor) },
    { "supervisor_start", "keeper_start", FIELD_INT, AT(supervisor_start) },
    { "heartbeats_dev", NULL, FIELD_INT, AT(heartbeats_dev) },
    { "heartbeats_ino", NULL, FIELD_INT, AT(heartbeats_ino) },
    { "best_step", NULL, FIELD_INT, AT(best_step) },
    { "best_at_launch", NULL, FIELD_INT, AT(best_at_launch) },
    { "resumed_at", NULL, FIELD_INT, AT(resumed_at) },
    { "saved", NULL, FIELD_INT, AT(saved) },
    { "fails_in_row", NULL, FIELD_INT, AT(fails_in_row) },
    { "fault_step", NULL, FIELD_INT, AT(fault_step) },
    { "done_steps", "steps", FIELD_INT, AT(done_steps) },
    { "fault_steps", NULL, FIELD_INT, AT(fault_steps) },
    { "bad_loss_step", "nan_step", FIELD_INT, AT(bad_loss_step) },
    { "gpu_bytes", NULL, FIELD_INT, AT(findings.gpus.bytes) },
    { "gpu_overstated", NULL, FIELD_INT, AT(findings.gpus.overstated) },
    { "gpu_refused", NULL, FIELD_INT, AT(findings.gpus.refused) },
    { "micro", "way.micro", FIELD_INT, AT(config.micro) },
    { "recompute", "way.recompute", FIELD_RECOMPUTE, AT(config.recompute) },
    { "fault_at", NULL, FIELD_DOUBLE, AT(fault_at) },
    { "fault_wall", NULL, FIELD_DOUBLE, AT(fault_wall) },
    { "fault_seconds", NULL, FIELD_DOUBLE, AT(fault_seconds) },
    { "restart_seconds", NULL, FIELD_DOUBLE, AT(restart_seconds) },
    { "read_rate", NULL, FIELD_DOUBLE, AT(read_rate) },
    { "load_rate", NULL, FIELD_DOUBLE, AT(load_rate) },
    { "convert_rate", NULL, FIELD_DOUBLE, AT(convert_rate) },
    { "open", NULL, FIELD_BOOL, AT(open) },
    { "loss_known", NULL, FIELD_BOOL, AT(loss_known) },
    { "reports", NULL, FIELD_BOOL, AT(reports) },
    { "stop", NULL, FIELD_BOOL, AT(stop) },
    { "relaunch", "new_layout", FIELD_BOOL, AT(relaunch) },
    { "continues", "chained", FIELD_BOOL, AT(continues) },
#undef AT
};
enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

tp_status run_record_init(struct run_record *r, struct tp_err *err)
{
    unsigned char random[(RUN_ID_TEXT - 1) / 2];

    *r = (struct run_record){ .state = RUN_PLAN,
                              .config.spec = spec_default(),
                              .best_step = -1,
                              .best_at_launch = -1,
                              .resumed_at = -1,
                              .saved = -1,
                              .fault_step = -1,
                              .bad_loss_step = -1 };
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return tp_fail_errno(err, "no random numbers");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(r->run_id + 2 * i, 3, "%02x", random[i]);
    return TP_OK;
}

/* ---- writing ---- */

static json_t *lists_json(const struct run_record *r)
{
    json_t *restarts = json_array(), *bad = json_array(), *spent = json_object();

    for (int i = 0; i < r->n_restarts; i++)
        json_array_append_new(restarts, json_real(r->restarts[i]));
    for (int i = 0; i < r->n_bad; i++)
        json_array_append_new(
            bad, json_pack("[I,I]", (json_int_t)r->bad[i].step, (json_int_t)r->bad[i].fails));
    for (int i = 0; i < TIME_CAUSES; i++)
        json_object_set_new(spent, time_account_cause_name((enum time_account_cause)i),
                            json_real(r->spent[i]));
    return json_pack("{s:o,s:o,s:o,s:o}", "restarts", restarts, "bad", bad, "measured",
                     step_times_json(&r->findings.times), "spent", spent);
}

static json_t *field_json(const struct run_record_field *f, const struct run_record *r)
{
    const void *at = (const char *)r + f->offset;

    switch (f->kind) {
    case FIELD_INT:
        return json_integer(*(const int64_t *)at);
    case FIELD_DOUBLE:
        return json_real(*(const double *)at);
    case FIELD_RECOMPUTE:
        return json_integer(*(const enum recompute *)at);
    default:
        return json_boolean(*(const bool *)at);
    }
}

json_t *run_record_json(const struct run_record *r)
{
    char spec[SPEC_TEXT_MAX];
    json_t *o =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "run_id", r->run_id, "state",
                  run_state_name(r->state), "layout", spec_format(spec, &r->config.spec), "resize",
                  r->resize, "reason", r->reason, "message", r->message, "fault_reason",
                  r->fault_reason, "fault", r->fault, "heartbeats", r->heartbeats);
    json_t *lists = lists_json(r);

    for (int i = 0; o && i < N_FIELDS; i++)
        json_object_set_new(o, FIELDS[i].name, field_json(&FIELDS[i], r));
    json_object_update(o, lists);
    json_decref(lists);
    return o;
}

/* ---- reading ---- */

static void copy_text(char *to, size_t size, const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));

    snprintf(to, size, "%s", text ? text : "");
}

static void read_lists(struct run_record *r, const json_t *o, double now)
{
    const json_t *v;
    size_t i;

    json_array_foreach(json_object_get(o, "restarts"), i, v)
    {
        if (r->n_restarts < RUN_RECORD_RESTARTS_MAX && json_number_value(v) <= now)
            r->restarts[r->n_restarts++] = json_number_value(v);
    }
    json_array_foreach(json_object_get(o, "bad"), i, v)
    {
        if (r->n_bad == RUN_RECORD_BAD_MAX)
            break;
        r->bad[r->n_bad].step = json_integer_value(json_array_get(v, 0));
        r->bad[r->n_bad++].fails = json_integer_value(json_array_get(v, 1));
    }
    step_times_read(&r->findings.times, json_object_get(o, "measured"));
    for (int c = 0; c < TIME_CAUSES; c++)
        r->spent[c] = json_number_value(json_object_get(
            json_object_get(o, "spent"), time_account_cause_name((enum time_account_cause)c)));
}

/* A value that is missing or has another type does not change the field, unless it is a flag. */
static void field_read(const struct run_record_field *f, struct run_record *r, const json_t *o)
{
    void *at = (char *)r + f->offset;
    const json_t *v = json_object_get(o, f->name);
    json_int_t n;

    if (!v && f->old_name)
        v = json_object_get(o, f->old_name);
    n = json_integer_value(v);
    if (f->kind == FIELD_INT && json_is_integer(v))
        *(int64_t *)at = n;
    else if (f->kind == FIELD_DOUBLE && json_is_number(v))
        *(double *)at = json_number_value(v);
    else if (f->kind == FIELD_BOOL)
        *(bool *)at = json_is_true(v);
    else if (f->kind == FIELD_RECOMPUTE && n >= 0 && n < RECOMPUTE_COUNT)
        *(enum recompute *)at = (enum recompute)n;
}

/* Earlier versions had only a sentence, called reason. */
static void read_reason(struct run_record *r, const json_t *o)
{
    if (json_object_get(o, "message")) {
        copy_text(r->reason, sizeof r->reason, o, "reason");
        copy_text(r->message, sizeof r->message, o, "message");
    } else {
        copy_text(r->message, sizeof r->message, o, "reason");
    }
}

tp_status run_record_read(struct run_record *r, const json_t *o, const char *name, double now,
                          struct tp_err *err)
{
    const char *spec = json_string_value(json_object_get(o, "layout"));
    const char *state = json_string_value(json_object_get(o, "state"));
    tp_status st = run_record_init(r, err);

    if (st)
        return st;
    copy_text(r->run_id, sizeof r->run_id, o, "run_id");
    copy_text(r->resize, sizeof r->resize, o, "resize");
    copy_text(r->heartbeats, sizeof r->heartbeats, o, "heartbeats");
    read_reason(r, o);
    copy_text(r->fault_reason, sizeof r->fault_reason, o, "fault_reason");
    copy_text(r->fault, sizeof r->fault, o, "fault");
    for (int s = 0; state && s < RUN_STATES; s++)
        if (strcmp(run_state_name((enum run_state)s), state) == 0)
            r->state = (enum run_state)s;
    for (int i = 0; i < N_FIELDS; i++)
        field_read(&FIELDS[i], r, o);
    if (r->fault_at > now)
        r->fault_at = 0;
    read_lists(r, o, now);
    if (strlen(r->run_id) != RUN_ID_TEXT - 1 || !state || !spec ||
        spec_parse(&r->config.spec, spec, err))
        return tp_fail(err, TP_E_CORRUPT, "%s: the journal's last record is not of a run", name);
    return TP_OK;
}

double run_record_goodput(const struct run_record *r)
{
    double all = 0;

    for (int i = 0; i < TIME_CAUSES; i++)
        all += r->spent[i];
    return all > 0 ? (r->spent[TIME_TRAINING] + r->spent[TIME_SAVING]) / all : 0;
}
