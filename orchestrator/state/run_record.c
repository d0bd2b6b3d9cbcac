/* orchestrator/state/run_record.c - see orchestrator/state/run_record.h. */
#include "orchestrator/state/run_record.h"
#include "orchestrator/job/job_backend.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const char *run_state_name(enum run_state s)
{
    static const char *const names[RUN_STATES] = { "plan",  "reshard", "launch", "init",
                                                   "train", "save",    "drain",  "diagnose",
                                                   "done",  "stopped", "failed" };

    return s < RUN_STATES ? names[s] : "?";
}

const char *time_cause_name(enum time_cause c)
{
    static const char *const names[TIME_CAUSES] = { "training",  "saving",   "lost",
                                                    "detecting", "planning", "resharding",
                                                    "starting",  "waiting",  "stopping" };

    return c < TIME_CAUSES ? names[c] : "?";
}

/* The plain numbers: one table reads and writes them. */
enum field_kind { FIELD_INT, FIELD_DOUBLE, FIELD_BOOL, FIELD_RECOMPUTE };

static const struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
} FIELDS[] = {
#define INT(f)                                        \
    {                                                 \
#f, FIELD_INT, offsetof(struct run_record, f) \
    }
#define DOUBLE(f)                                        \
    {                                                    \
#f, FIELD_DOUBLE, offsetof(struct run_record, f) \
    }
#define BOOL(f)                                        \
    {                                                  \
#f, FIELD_BOOL, offsetof(struct run_record, f) \
    }
#define RECOMPUTE(f)                                        \
    {                                                       \
#f, FIELD_RECOMPUTE, offsetof(struct run_record, f) \
    }
    INT(attempt),        INT(epoch),        INT(keeper),
    INT(keeper_start),   INT(best_step),    INT(best_at_launch),
    INT(resumed_at),     INT(saved),        INT(fails_in_row),
    INT(nan_step),       DOUBLE(fault_at),  DOUBLE(restart_seconds),
    BOOL(open),          BOOL(loss_known),  BOOL(stop),
    BOOL(new_layout),    INT(way.micro),    RECOMPUTE(way.recompute),
    DOUBLE(read_rate),   DOUBLE(load_rate), DOUBLE(convert_rate),
    INT(slurm_job),      INT(slurm_next),   INT(slurm_link),
    INT(slurm_restarts), INT(link_saved),   INT(idle_links),
    BOOL(slurm_own),     BOOL(chained),     INT(steps),
    BOOL(reports),
};
enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

tp_status run_record_init(struct run_record *b, const struct job *job, struct tp_err *err)
{
    unsigned char random[(RUN_ID_TEXT - 1) / 2];

    *b = (struct run_record){ .state = RUN_PLAN,
                              .way.spec = spec_default(),
                              .best_step = -1,
                              .best_at_launch = -1,
                              .resumed_at = -1,
                              .saved = -1,
                              .nan_step = -1,
                              .n_nodes = job->n_nodes };
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return tp_fail_errno(err, "no random numbers");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(b->run_id + 2 * i, 3, "%02x", random[i]);
    b->nodes = calloc((size_t)job->n_nodes + 1, sizeof *b->nodes);
    return b->nodes ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for %d nodes", job->n_nodes);
}

void run_record_free(struct run_record *b)
{
    free(b->nodes);
    b->nodes = NULL;
}

static json_t *nodes_json(const struct run_record *b, const struct job *job)
{
    json_t *all = json_object();

    for (int i = 0; i < b->n_nodes; i++) {
        const struct run_node *n = &b->nodes[i];

        if (job->backend->finds_nodes || n->down || n->blame || n->excluded_to > 0 ||
            n->back_since > 0)
            json_object_set_new(all, job->nodes[i].name,
                                json_pack("{s:b,s:I,s:f,s:f}", "down", n->down, "blame",
                                          (json_int_t)n->blame, "excluded_to", n->excluded_to,
                                          "back_since", n->back_since));
    }
    return all;
}

static json_t *lists_json(const struct run_record *b)
{
    json_t *restarts = json_array(), *bad = json_array(), *measured = json_object();
    json_t *spent = json_object();

    for (int i = 0; i < b->n_restarts; i++)
        json_array_append_new(restarts, json_real(b->restarts[i]));
    for (int i = 0; i < b->n_bad; i++)
        json_array_append_new(
            bad, json_pack("[I,I]", (json_int_t)b->bad[i].step, (json_int_t)b->bad[i].fails));
    for (int i = 0; i < b->n_measured; i++)
        json_object_set_new(measured, b->measured[i].way, json_real(b->measured[i].seconds));
    for (int i = 0; i < TIME_CAUSES; i++)
        json_object_set_new(spent, time_cause_name((enum time_cause)i), json_real(b->spent[i]));
    return json_pack("{s:o,s:o,s:o,s:o}", "restarts", restarts, "bad", bad, "measured", measured,
                     "spent", spent);
}

static json_t *field_json(const struct field *f, const struct run_record *b)
{
    const void *at = (const char *)b + f->offset;

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

json_t *run_record_json(const struct run_record *b, const struct job *job)
{
    char spec[SPEC_TEXT_MAX];
    json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:s,s:o}", "run_id", b->run_id, "state",
                          run_state_name(b->state), "layout", spec_format(spec, &b->way.spec),
                          "resize", b->resize, "reason", b->reason, "nodes", nodes_json(b, job));
    json_t *lists = lists_json(b);

    for (int i = 0; o && i < N_FIELDS; i++)
        json_object_set_new(o, FIELDS[i].name, field_json(&FIELDS[i], b));
    json_object_update(o, lists);
    json_decref(lists);
    return o;
}

static void copy_text(char *to, size_t size, const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));

    snprintf(to, size, "%s", text ? text : "");
}

static void read_nodes(struct run_record *b, const json_t *all, const struct job *job, double now)
{
    for (int i = 0; i < b->n_nodes; i++) {
        const json_t *o = json_object_get(all, job->nodes[i].name);
        struct run_node *n = &b->nodes[i];

        n->down = json_is_true(json_object_get(o, "down"));
        n->blame = json_integer_value(json_object_get(o, "blame"));
        n->excluded_to = json_number_value(json_object_get(o, "excluded_to"));
        n->back_since = json_number_value(json_object_get(o, "back_since"));
        if (n->excluded_to > now + job->restart.exclude_for)
            n->excluded_to = 0; /* of an earlier boot */
        if (n->back_since > now)
            n->back_since = 0;
    }
}

static void read_lists(struct run_record *b, const json_t *o, double now)
{
    const json_t *measured = json_object_get(o, "measured"), *v;
    const char *name;
    size_t i;

    json_array_foreach(json_object_get(o, "restarts"), i, v)
    {
        if (b->n_restarts < RUN_RECORD_RESTARTS_MAX && json_number_value(v) <= now)
            b->restarts[b->n_restarts++] = json_number_value(v);
    }
    json_array_foreach(json_object_get(o, "bad"), i, v)
    {
        if (b->n_bad == RUN_RECORD_BAD_MAX)
            break;
        b->bad[b->n_bad].step = json_integer_value(json_array_get(v, 0));
        b->bad[b->n_bad++].fails = json_integer_value(json_array_get(v, 1));
    }
    json_object_foreach((json_t *)(uintptr_t)measured, name, v)
    {
        if (b->n_measured == RUN_RECORD_MEASURED_MAX)
            break;
        snprintf(b->measured[b->n_measured].way, RUN_CONFIG_TEXT_MAX, "%s", name);
        b->measured[b->n_measured++].seconds = json_number_value(v);
    }
    for (int c = 0; c < TIME_CAUSES; c++)
        b->spent[c] = json_number_value(
            json_object_get(json_object_get(o, "spent"), time_cause_name((enum time_cause)c)));
}

/* What is missing or of another kind stays as it is, but for flags. */
static void field_read(const struct field *f, struct run_record *b, const json_t *v)
{
    void *at = (char *)b + f->offset;
    json_int_t n = json_integer_value(v);

    if (f->kind == FIELD_INT && json_is_integer(v))
        *(int64_t *)at = n;
    else if (f->kind == FIELD_DOUBLE && json_is_number(v))
        *(double *)at = json_number_value(v);
    else if (f->kind == FIELD_BOOL)
        *(bool *)at = json_is_true(v);
    else if (f->kind == FIELD_RECOMPUTE && n >= 0 && n < RECOMPUTE_COUNT)
        *(enum recompute *)at = (enum recompute)n;
}

tp_status run_record_read(struct run_record *b, const json_t *o, const struct job *job, double now,
                          struct tp_err *err)
{
    const char *spec = json_string_value(json_object_get(o, "layout"));
    const char *state = json_string_value(json_object_get(o, "state"));
    tp_status st = run_record_init(b, job, err);

    if (st)
        return st;
    copy_text(b->run_id, sizeof b->run_id, o, "run_id");
    copy_text(b->resize, sizeof b->resize, o, "resize");
    copy_text(b->reason, sizeof b->reason, o, "reason");
    for (int s = 0; state && s < RUN_STATES; s++)
        if (strcmp(run_state_name((enum run_state)s), state) == 0)
            b->state = (enum run_state)s;
    for (int i = 0; i < N_FIELDS; i++)
        field_read(&FIELDS[i], b, json_object_get(o, FIELDS[i].name));
    if (b->fault_at > now)
        b->fault_at = 0;
    read_nodes(b, json_object_get(o, "nodes"), job, now);
    read_lists(b, o, now);
    if (strlen(b->run_id) != RUN_ID_TEXT - 1 || !state || !spec ||
        spec_parse(&b->way.spec, spec, err)) {
        run_record_free(b);
        return tp_fail(err, TP_E_CORRUPT, "%s: the journal's last record is no book", job->state);
    }
    return TP_OK;
}

double run_record_goodput(const struct run_record *b)
{
    double all = 0;

    for (int i = 0; i < TIME_CAUSES; i++)
        all += b->spent[i];
    return all > 0 ? (b->spent[TIME_TRAINING] + b->spent[TIME_SAVING]) / all : 0;
}
