/*
 * cli/run/cmd.h - the verbs of tp-run. argv[0] is the verb; the result is the exit code.
 */
#ifndef CLI_RUN_CMD_H
#define CLI_RUN_CMD_H

int cmd_run_job(int argc, char **argv);
int cmd_run_plan(int argc, char **argv);
int cmd_run_status(int argc, char **argv);
int cmd_run_events(int argc, char **argv);
int cmd_run_stop(int argc, char **argv);
int cmd_run_resize(int argc, char **argv);
int cmd_run_submit(int argc, char **argv);
int cmd_run_node(int argc, char **argv);

/* For processes that tp-run itself starts (cmd_worker.c). */
int cmd_run_supervise(int argc, char **argv);
int cmd_run_check(int argc, char **argv);
int cmd_run_relay(int argc, char **argv);
int cmd_run_ask(int argc, char **argv);
int cmd_run_standby(int argc, char **argv);

#endif
