/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands of ep-fabric, one a file. Called by its main program with the arguments that
 * follow the subcommand's name (argv[0] is what messages call it); each returns the exit status: 0 done,
 * 1 failed, 2 wrong usage, 77 not applicable here.
 */
#ifndef EPF_TOOLS_CLI_TOOLS_H
#define EPF_TOOLS_CLI_TOOLS_H

/* `ep-fabric config`: print every setting with its origin. */
int epf_tool_config(int argc, char **argv);

/* `ep-fabric nics`: print what each kind of NIC can do, and which RDMA device serves which GPU. */
int epf_tool_nics(int argc, char **argv);

/* `ep-fabric stats`: print the statistics of instances. */
int epf_tool_stats(int argc, char **argv);

/* `ep-fabric bootstrap`: serve the rendezvous, or print what it would do. */
int epf_tool_bootstrap(int argc, char **argv);

/* `ep-fabric run`: the daemon, in the foreground. */
int epf_tool_run(int argc, char **argv);

/* `ep-fabric report`: gather what a bug report needs. */
int epf_tool_report(int argc, char **argv);

/* `ep-fabric status`: print what daemons do. */
int epf_tool_status(int argc, char **argv);

/* `ep-fabric doctor`: examine the node. */
int epf_tool_doctor(int argc, char **argv);

/* `ep-fabric drain`: begin or end draining. */
int epf_tool_drain(int argc, char **argv);

/* `ep-fabric shim`: run a program with the shim for DeepEP preloaded. */
int epf_tool_shim(int argc, char **argv);

/* `ep-fabric exec`: run a program over the back end that one setting names. */
int epf_tool_exec(int argc, char **argv);

/* `ep-fabric launch`: run the ranks of a job on several hosts. */
int epf_tool_launch(int argc, char **argv);

/* `ep-fabric link`: cut or restore an emulated link. */
int epf_tool_link(int argc, char **argv);

/* `ep-fabric version`: print the versions of this release and its formats. */
int epf_tool_version(int argc, char **argv);

/* `ep-fabric why`: says what waits for what, and the cause. */
int epf_tool_why(int argc, char **argv);

/* `ep-fabric trace`: print flight recorders for a trace viewer. */
int epf_tool_trace(int argc, char **argv);

#endif
