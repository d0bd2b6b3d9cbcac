/* orchestrator/run_gpus.c - see run_state.h: the GPUs of tp-train's ranks on this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/run_state.h"

enum { GPU_LIST_MAX = 8192, CHOICE_LINES = 100 };

static const char VISIBLE[] = "CUDA_VISIBLE_DEVICES";

static bool uses_gpus(const struct run *r)
{
    const char *device = r->job->is_tp_train ? job_option(r->job, "--device") : NULL;

    return r->backend.table->is_one_machine && device &&
           (strcmp(device, "cuda") == 0 || strcmp(device, "auto") == 0);
}

/* ---- which GPU a rank has ---- */

/* The number of a node's first slot, counted over all nodes. */
static int first_slot(const struct run *r, const struct node *node)
{
    int n = 0;

    for (int i = 0; i < r->nodes.n && r->nodes.node[i] != node; i++)
        n += r->nodes.node[i]->slots;
    return n;
}

/* Entry `i` of a list that commas separate: its text and length. "": there is none. */
static const char *entry_of(const char *list, int i, int *length)
{
    for (; i > 0 && *list; i--) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    *length = (int)strcspn(list, ",");
    return list;
}

void run_gpus_select(const struct run *r, struct environment *env)
{
    const struct attempt *a = &r->attempt;
    const char *given = environment_get(env, VISIBLE);
    char list[GPU_LIST_MAX] = "", number[16];
    int k = 0;

    if (!uses_gpus(r))
        return;
    for (int i = 0; i < a->world; i++) {
        size_t at = strlen(list);
        const char *entry = number;
        int slot, length;

        k = i > 0 && a->rank[i].node == a->rank[i - 1].node ? k + 1 : 0;
        slot = first_slot(r, a->rank[i].node) + k;
        length = snprintf(number, sizeof number, "%d", slot);
        if (given)
            entry = entry_of(given, slot, &length);
        if (length > 0)
            snprintf(list + at, sizeof list - at, "%s%.*s", at ? "," : "", length, entry);
    }
    environment_set(env, VISIBLE, list);
}

/* ---- what --device auto has chosen ---- */

void run_gpus_describe(const struct run *r, json_t *event)
{
    static const char says[] = "tp-train: device: ";
    const char *device = job_option(r->job, "--device");
    char line[400];
    FILE *log;

    if (!r->job->is_tp_train || !device || strcmp(device, "auto") != 0 ||
        !(log = fopen(r->attempt.log, "re")))
        return;
    for (int i = 0; i < CHOICE_LINES && fgets(line, sizeof line, log); i++)
        if (strncmp(line, says, sizeof says - 1) == 0) {
            line[strcspn(line, "\n")] = 0;
            json_object_set_new(event, "device", json_string(text_clean(line + sizeof says - 1)));
            break;
        }
    fclose(log);
}

/* ---- GPUs that are missing ---- */

/* The number of GPUs that tp-train found when it refused to start (train_cuda.c, cuda_gpu.c); -1:
 * it had another reason. */
static int gpus_found(const char *message)
{
    static const char has[] = "ranks are on this machine, which has ";
    const char *at = strstr(message, has);

    if (at)
        return (int)strtol(at + sizeof has - 1, NULL, 10);
    return strstr(message, "no GPU that this process may use") ? 0 : -1;
}

static void report_missing(struct run *r, const struct node *n, int before)
{
    char text[160];

    snprintf(text, sizeof text, "%d of %d cannot be used any more", n->missing - before,
             n->slots - before);
    run_event(r, EVENT_GPUS_LOST, REASON_GPUS_MISSING, text,
              json_pack("{s:s,s:i}", "node", n->name, "slots", node_slots(n)));
}

bool run_gpus_are_missing(struct run *r, struct attempt_fault *f)
{
    const struct attempt *a = &r->attempt;
    int found = gpus_found(f->message);

    if (!uses_gpus(r) || r->record.best_step < 0 || found < 0 || found >= a->world)
        return false;
    for (int i = 0; i < r->nodes.n; i++) {
        struct node *n = r->nodes.node[i];
        int before = n->missing;

        for (int k = found; k < a->world; k++) /* the first ranks have the GPUs that are left */
            n->missing += a->rank[k].node == n;
        if (n->missing > before)
            report_missing(r, n, before);
    }
    f->reason = REASON_GPUS_MISSING;
    return run_free_ranks(r, false) > 0;
}
