/* orchestrator/backend/backend.c - see orchestrator/backend/backend.h: the defaults. */
#include "orchestrator/backend/backend.h"

tp_status backend_open(struct backend_run *b, const struct backend *table,
                       const struct backend_host *host, const json_t *run_record)
{
    *b = (struct backend_run){ .table = table };
    return table->open ? table->open(&b->state, host, run_record) : TP_OK;
}

void backend_begin(const struct backend_run *b, bool fresh)
{
    if (b->table->begin)
        b->table->begin(b->state, fresh);
}

tp_status backend_tick(const struct backend_run *b)
{
    return b->table->tick ? b->table->tick(b->state) : TP_OK;
}

tp_status backend_reaped(const struct backend_run *b, pid_t pid, int status, bool *mine)
{
    *mine = false;
    return b->table->reaped ? b->table->reaped(b->state, pid, status, mine) : TP_OK;
}

void backend_close(struct backend_run *b, bool over)
{
    if (b->table && b->table->close && b->state)
        b->table->close(b->state, over);
    b->state = NULL;
}

json_t *backend_record(const struct backend_run *b)
{
    return b->table->record ? b->table->record(b->state) : NULL;
}

tp_status backend_ready(const struct backend_run *b, bool *ready)
{
    *ready = true;
    return b->table->ready ? b->table->ready(b->state, ready) : TP_OK;
}

bool backend_wants_nodes(const struct backend_run *b, int usable, bool has_layout)
{
    return b->table->wants_nodes && b->table->wants_nodes(b->state, usable, has_layout);
}

void backend_look(const struct backend_run *b, bool first)
{
    if (b->table->look)
        b->table->look(b->state, first);
}

tp_status backend_command(const struct backend_run *b, const struct backend_launch *launch,
                          struct job_words *out)
{
    *out = (struct job_words){ 0 };
    return b->table->command ? b->table->command(b->state, launch, out) : TP_OK;
}

double backend_node_timeout(const struct backend_run *b)
{
    return b->table->node_timeout ? b->table->node_timeout(b->state) : 0;
}

bool backend_is_paused(const struct backend_run *b)
{
    return b->table->is_paused && b->table->is_paused(b->state);
}

bool backend_explains_silence(const struct backend_run *b)
{
    return b->table->explains_silence && b->table->explains_silence(b->state);
}

bool backend_explains_sigterm(const struct backend_run *b, struct backend_cause *cause)
{
    return b->table->explains_sigterm && b->table->explains_sigterm(b->state, cause);
}

enum backend_allocation backend_after_save(const struct backend_run *b, struct backend_cause *cause)
{
    return b->table->after_save ? b->table->after_save(b->state, cause) : BACKEND_ALLOCATION_STAYS;
}

bool backend_is_ending(const struct backend_run *b, struct backend_cause *cause)
{
    return b->table->is_ending && b->table->is_ending(b->state, cause);
}

tp_status backend_hand_over(const struct backend_run *b, const struct backend_cause *cause,
                            bool *plan)
{
    *plan = true;
    return b->table->hand_over ? b->table->hand_over(b->state, cause, plan) : TP_OK;
}

struct backend_log backend_read_log(const struct backend_run *b, const char *text)
{
    return b->table->read_log && text ? b->table->read_log(b->state, text)
                                      : (struct backend_log){ 0 };
}

void backend_report_log(const struct backend_run *b, const char *text)
{
    if (b->table->report_log && text)
        b->table->report_log(b->state, text);
}

void backend_node_excluded(const struct backend_run *b, const struct node *node,
                           const char *message)
{
    if (b->table->node_excluded)
        b->table->node_excluded(b->state, node, message);
}

json_t *backend_status(const struct backend_run *b)
{
    return b->state && b->table->status ? b->table->status(b->state) : NULL;
}

void backend_line(const struct backend_run *b, char *line, size_t size)
{
    if (b->table->line)
        b->table->line(b->state, line, size);
}

void backend_home(const struct backend *table, struct home *out, const struct environment *env)
{
    home_here(out, 0, NULL);
    if (table->home)
        table->home(out, env);
}
