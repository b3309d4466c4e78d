/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of statistics. Each row is a number that the engine keeps: it becomes a constant
 * (EPF_STAT_<CLASS>_<ROW>) in epf_stats.h and a line of the schema inside the statistics file, from
 * which every tool prints it. There is no per-counter code anywhere else: to add a number, add a
 * row. Readers find rows by name, so rows may move; a name keeps its meaning forever.
 *
 * Included several times, after defining what is wanted of these, each defaulting to nothing:
 *   EPF_CLASS(ID, "name", "help", "label=kind ...")   opens a class; kind is num or text
 *   EPF_ROW(CLASS, ID, "name", "unit", TYPE, "state names", "help")
 *   EPF_END(CLASS)                                    closes it
 * TYPE: COUNTER only grows; GAUGE goes both ways; STATE is an index into "a|b|c" plus the time it
 * was entered; HISTOGRAM is one struct epf_hist; EVENTS is the flight recorder (epf_flight.h). Limits (checked when the file is made): names 39,
 * units 15, state names 71, help 103 characters; 128 rows a class.
 * Contains rows only.
 */
#ifndef EPF_CLASS
# define EPF_CLASS(id, name, help, labels)
#endif
#ifndef EPF_ROW
# define EPF_ROW(cls, id, name, unit, type, states, help)
#endif
#ifndef EPF_END
# define EPF_END(cls)
#endif

/* clang-format off */
EPF_CLASS(CORE, "core", "One polling thread of the engine.", "core=num numa=num")
EPF_ROW(CORE, STEPS_BUSY,           "steps_busy",           "steps",    COUNTER, "", "Steps that did something.")
EPF_ROW(CORE, STEPS_IDLE,           "steps_idle",           "steps",    COUNTER, "", "Steps that found nothing to do.")
EPF_ROW(CORE, BUSY_TSC,             "busy_tsc",             "cycles",   COUNTER, "", "Time-stamp cycles spent in busy steps.")
EPF_ROW(CORE, CMDS_DEQUEUED,           "cmds_dequeued",           "commands", COUNTER, "", "Commands dequeued from rings.")
EPF_ROW(CORE, CMDS_REFUSED,         "cmds_refused",         "commands", COUNTER, "", "Commands that failed the check and were refused.")
EPF_ROW(CORE, CMDS_FAILED,          "cmds_failed",          "commands", COUNTER, "", "Commands retired with an error, the refused ones included.")
EPF_ROW(CORE, CMDS_DEFERRED,          "cmds_deferred",          "commands", COUNTER, "", "Commands set aside because their peer had no credit.")
EPF_ROW(CORE, DOORBELLS,            "doorbells",            "posts",    COUNTER, "", "Post calls to a NIC; wrs_posted divided by this is the batch size.")
EPF_ROW(CORE, WRS_POSTED,           "wrs_posted",           "requests", COUNTER, "", "Work requests given to a NIC.")
EPF_ROW(CORE, COMPLETIONS,          "completions",          "requests", COUNTER, "", "Work completions polled from a NIC.")
EPF_ROW(CORE, ARRIVALS,             "arrivals",             "messages", COUNTER, "", "Arrivals from peers seen by this core.")
EPF_ROW(CORE, DUPLICATES_DROPPED,   "duplicates_dropped",   "messages", COUNTER, "", "Arrivals dropped because they had been counted before.")
EPF_ROW(CORE, ARRIVALS_REFUSED,     "arrivals_refused",     "messages", COUNTER, "", "Arrivals that no well-behaved peer sends: refused.")
EPF_ROW(CORE, ARRIVALS_FOR_GONE,    "arrivals_for_gone",    "messages", COUNTER, "", "Signals and adds for a local rank that has gone: dropped.")
EPF_ROW(CORE, SIGNALS_APPLIED,      "signals_applied",      "signals",  COUNTER, "", "Signals made visible to a local rank.")
EPF_ROW(CORE, SIGNALS_WAITED,       "signals_waited",       "signals",  COUNTER, "", "Signals that had to wait for earlier data of their stream.")
EPF_ROW(CORE, LANE_ERRORS,          "lane_errors",          "errors",   COUNTER, "", "Lanes that failed and were fenced.")
EPF_ROW(CORE, REPLAYS,              "replays",              "requests", COUNTER, "", "Work requests sent again on another lane after a failure.")
EPF_ROW(CORE, REPLAYS_SPARED,       "replays_spared",       "requests", COUNTER, "", "Work requests of a failed lane that had arrived all the same: duplicates that were not sent.")
EPF_ROW(CORE, FAILOVERS,            "failovers",            "times",    COUNTER, "", "Times a link or device was lost and its work went on over another one.")
EPF_ROW(CORE, RECOVERIES,           "recoveries",           "times",    COUNTER, "", "Times all lanes of a link that was lost were in use again.")
EPF_ROW(CORE, FAILOVER_NS,          "failover_ns",          "ns",       GAUGE,   "", "The last failover: time from the failure of a lane until its work went on over another one.")
EPF_ROW(CORE, FAILOVER_MAX_NS,      "failover_max_ns",      "ns",       GAUGE,   "", "The longest such time.")
EPF_ROW(CORE, CREDIT_STALLS,        "credit_stalls",        "stalls",   COUNTER, "", "Times a lane had work and no credit.")
EPF_ROW(CORE, QUEUE_FULL_STALLS,    "queue_full_stalls",    "stalls",   COUNTER, "", "Times a lane had credit and a full send queue.")
EPF_ROW(CORE, RING_FULL_SEEN,       "ring_full_seen",       "times",    COUNTER, "", "Times a ring was found full, so that its producer waited.")
EPF_ROW(CORE, PUT_BYTES_REMOTE_NODE,"put_bytes_remote_node","bytes",    COUNTER, "", "Payload of puts to ranks of other nodes.")
EPF_ROW(CORE, PUT_BYTES_SAME_NODE,  "put_bytes_same_node",  "bytes",    COUNTER, "", "Payload of puts to ranks of this node.")
EPF_ROW(CORE, GET_BYTES,            "get_bytes",            "bytes",    COUNTER, "", "Payload of gets.")
EPF_ROW(CORE, SLEEPS,               "sleeps",               "times",    COUNTER, "", "Times the core went to sleep after a quiet time.")
EPF_ROW(CORE, WAKEUPS,              "wakeups",              "times",    COUNTER, "", "Times the core was woken by work, not by its timer.")
EPF_ROW(CORE, INVOLUNTARY_SWITCHES, "involuntary_switches", "switches", COUNTER, "", "Times the kernel took the CPU away; above zero the core is shared.")
EPF_ROW(CORE, DEQUEUE_TSC,             "dequeue_tsc",             "cycles",   COUNTER, "", "Cycles taking commands from rings.")
EPF_ROW(CORE, CHECK_TSC,            "check_tsc",            "cycles",   COUNTER, "", "Cycles checking commands.")
EPF_ROW(CORE, STAGE_TSC,            "stage_tsc",            "cycles",   COUNTER, "", "Cycles admitting and staging commands; of puts in a row, taking too.")
EPF_ROW(CORE, FLUSH_TSC,            "flush_tsc",            "cycles",   COUNTER, "", "Cycles posting work requests.")
EPF_ROW(CORE, REAP_TSC,             "reap_tsc",             "cycles",   COUNTER, "", "Cycles taking completions.")
EPF_ROW(CORE, ARRIVE_TSC,           "arrive_tsc",           "cycles",   COUNTER, "", "Cycles handling arrivals.")
EPF_ROW(CORE, PUBLISH_TSC,          "publish_tsc",          "cycles",   COUNTER, "", "Cycles publishing completion counters and head indices.")
EPF_ROW(CORE, STEP_NS,              "step_ns",              "ns",       HISTOGRAM, "", "Duration of busy steps; one step in 17 is timed.")
EPF_ROW(CORE, QUEUE_DELAY_NS,       "queue_delay_ns",       "ns",       HISTOGRAM, "", "Time from taking a command until a NIC has it, also while it is set aside; of one at a time.")
EPF_ROW(CORE, RING_WAIT_NS,         "ring_wait_ns",         "ns",       HISTOGRAM, "", "Time from seeing the newest command of a ring until it is dequeued; of one at a time.")
EPF_ROW(CORE, NIC_NS,               "nic_ns",               "ns",       HISTOGRAM, "", "Time from when a NIC has a command until it says that it is done; those of queue_delay_ns.")
EPF_ROW(CORE, HOLD_NS,              "hold_ns",              "ns",       HISTOGRAM, "", "Time that arrivals stood behind an addition to GPU memory, which they may not pass.")
EPF_END(CORE)

EPF_CLASS(RING, "ring", "One command ring, as its consumer sees it.", "core=num ring=num gpu=num rank=num")
EPF_ROW(RING, CMDS_PUSHED_SEEN,     "cmds_pushed_seen",     "commands", COUNTER, "", "Commands seen pushed by the producer.")
EPF_ROW(RING, CMDS_DEQUEUED,           "cmds_dequeued",           "commands", COUNTER, "", "Commands dequeued from this ring.")
EPF_ROW(RING, CMDS_RETIRED,         "cmds_retired",         "commands", COUNTER, "", "Commands retired: their source may be reused.")
EPF_ROW(RING, CMDS_FAILED,          "cmds_failed",          "commands", COUNTER, "", "Commands retired with an error.")
EPF_ROW(RING, OCCUPANCY,            "occupancy",            "slots",    GAUGE,   "", "Slots pushed and not yet dequeued when last looked at.")
EPF_ROW(RING, RING_FULL_SEEN,       "ring_full_seen",       "times",    COUNTER, "", "Times this ring was found full.")
EPF_ROW(RING, SLOTS,                "slots",                "slots",    GAUGE,   "", "Slots of the ring.")
EPF_ROW(RING, DEFERRED,               "deferred",               "commands", GAUGE,   "", "Commands of this ring that are set aside without credit.")
EPF_ROW(RING, WAIT,                 "wait",                 "state",    STATE,   EPF_STATS_WAIT_NAMES, "What its oldest command waits for, and since when; none: it moves, or is empty.")
EPF_ROW(RING, WAIT_RANK,            "wait_rank",            "rank",     GAUGE,   "", "The rank that this wait is for; of a node with several, its lowest.")
EPF_ROW(RING, WAIT_STREAM,          "wait_stream",          "stream",   GAUGE,   "", "The stream that it is in: a number of the pair of nodes.")
EPF_ROW(RING, WAIT_LANE,            "wait_lane",            "lane",     GAUGE,   "", "The lane that this stream is bound to.")
EPF_END(RING)

EPF_CLASS(LANE, "lane", "One lane (queue pair) to another node.", "core=num lane=num peer=num nic=text")
EPF_ROW(LANE, STATE,                "state",                "state",    STATE,   "down|connecting|up|draining|failed", "Life of the lane.")
EPF_ROW(LANE, WRS_POSTED,           "wrs_posted",           "requests", COUNTER, "", "Work requests posted.")
EPF_ROW(LANE, BYTES_POSTED,         "bytes_posted",         "bytes",    COUNTER, "", "Payload of puts that it was given; what another lane sends again counts here.")
EPF_ROW(LANE, COMPLETIONS,          "completions",          "requests", COUNTER, "", "Completions dequeued.")
EPF_ROW(LANE, ERRORS,               "errors",               "errors",   COUNTER, "", "Times it failed and was fenced.")
EPF_ROW(LANE, REPLAYS,              "replays",              "requests", COUNTER, "", "Work requests that another lane had to send again.")
EPF_ROW(LANE, CREDITS_AVAILABLE,    "credits_available",    "credits",  GAUGE,   "", "Work requests that may still be posted.")
EPF_ROW(LANE, RECEIVES_GRANTED,     "receives_granted",     "receives", COUNTER, "", "Receives granted by the other end so far.")
EPF_ROW(LANE, EPOCH,                "epoch",                "times",    COUNTER, "", "Times the lane has been wired up.")
EPF_ROW(LANE, IN_FLIGHT,            "in_flight",            "requests", GAUGE,   "", "Work requests posted and not completed.")
EPF_ROW(LANE, WAIT,                 "wait",                 "state",    STATE,   EPF_STATS_WAIT_NAMES, "What the lane waits for, and since when; none: it moves, or is idle.")
EPF_END(LANE)

EPF_CLASS(PEER, "peer", "One remote rank.", "core=num peer=num")
EPF_ROW(PEER, STATE,                "state",                "state",    STATE,   "down|connecting|up|draining|masked|left", "Life of the peer.")
EPF_ROW(PEER, CMDS,                 "cmds",                 "commands", COUNTER, "", "Commands for this peer that found credit and are on their way, or over.")
EPF_ROW(PEER, BYTES_SENT,           "bytes_sent",           "bytes",    COUNTER, "", "Payload of puts to this peer.")
EPF_ROW(PEER, SIGNALS_SENT,         "signals_sent",         "signals",  COUNTER, "", "Signals sent to this peer.")
EPF_ROW(PEER, SIGNALS_APPLIED,      "signals_applied",      "signals",  COUNTER, "", "Signals from this peer made visible here.")
EPF_ROW(PEER, STALLS_NO_CREDIT,     "stalls_no_credit",     "stalls",   COUNTER, "", "Commands for this peer that were set aside: no receive there, or too much in flight.")
EPF_ROW(PEER, STALLS_QUEUE_FULL,    "stalls_queue_full",    "stalls",   COUNTER, "", "Commands for this peer that were set aside: the send queue of their lane was full.")
EPF_ROW(PEER, STALLS_LANE_DOWN,     "stalls_lane_down",     "stalls",   COUNTER, "", "Commands for this peer that were set aside: their lane was not up.")
EPF_ROW(PEER, DEFERRED,               "deferred",               "commands", GAUGE,   "", "Commands for this peer that are set aside without credit.")
EPF_ROW(PEER, SILENT_NS,            "silent_ns",            "ns",       GAUGE,   "", "Time since its engine gave the last sign of life, in whole ticks.")
EPF_ROW(PEER, WAIT,                 "wait",                 "state",    STATE,   EPF_STATS_WAIT_NAMES, "What commands for this peer wait for, or what is missing from it, and since when.")
EPF_ROW(PEER, WAIT_STREAM,          "wait_stream",          "stream",   GAUGE,   "", "The stream that waits.")
EPF_ROW(PEER, WAIT_LANE,            "wait_lane",            "lane",     GAUGE,   "", "The lane that this stream is bound to.")
EPF_END(PEER)

EPF_CLASS(NIC, "nic", "One port of a NIC, real or emulated.", "device=text port=num core=num")
EPF_ROW(NIC, LINK,                  "link",                 "state",    STATE,   "down|up", "Link of the port.")
EPF_ROW(NIC, LINKS,                 "links",                "links",    GAUGE,   "", "Links that can go up and down by themselves.")
EPF_ROW(NIC, LINKS_UP,              "links_up",             "links",    GAUGE,   "", "Of these, those that are up.")
EPF_ROW(NIC, BYTES_TX,              "bytes_tx",             "bytes",    COUNTER, "", "Bytes sent.")
EPF_ROW(NIC, BYTES_RX,              "bytes_rx",             "bytes",    COUNTER, "", "Bytes received.")
EPF_ROW(NIC, MESSAGES_TX,           "messages_tx",          "messages", COUNTER, "", "Messages sent.")
EPF_ROW(NIC, MESSAGES_RX,           "messages_rx",          "messages", COUNTER, "", "Messages received.")
EPF_ROW(NIC, PACKETS_DROPPED,       "packets_dropped",      "packets",  COUNTER, "", "Packets lost on the way.")
EPF_ROW(NIC, PACKETS_DUPLICATED,    "packets_duplicated",   "packets",  COUNTER, "", "Packets that arrived twice.")
EPF_ROW(NIC, PACKETS_REORDERED,     "packets_reordered",    "packets",  COUNTER, "", "Packets that arrived out of order.")
EPF_ROW(NIC, RETRANSMITS,           "retransmits",          "packets",  COUNTER, "", "Packets sent again.")
EPF_ROW(NIC, RNR_EVENTS,            "rnr_events",           "times",    COUNTER, "", "Receiver-not-ready events; none by design.")
EPF_ROW(NIC, ERRORS,                "errors",               "times",    COUNTER, "", "Errors that the device reported.")
EPF_ROW(NIC, STRANGERS,             "strangers",            "times",    COUNTER, "", "Connections that were closed because they did not prove the job's key.")
EPF_END(NIC)

EPF_CLASS(JOB, "job", "One job, as one engine core sees it: how much of it there is, and how much of that has blocks here.", "core=num job=text")
EPF_ROW(JOB, ID,                    "id",                   "number",   GAUGE,   "", "Number of this run of the job, agreed at the join: the same at all its engines.")
EPF_ROW(JOB, WORLD,                 "world",                "ranks",    GAUGE,   "", "Ranks of the job.")
EPF_ROW(JOB, NODES,                 "nodes",                "nodes",    GAUGE,   "", "Engines of the job.")
EPF_ROW(JOB, NODE,                  "node",                 "node",     GAUGE,   "", "Number of this engine among them.")
EPF_ROW(JOB, RANKS,                 "ranks",                "ranks",    GAUGE,   "", "Ranks of the job that this engine serves.")
EPF_ROW(JOB, RANKS_LOST,            "ranks_lost",           "ranks",    COUNTER, "", "Ranks of the job that were lost.")
EPF_ROW(JOB, RINGS,                 "rings",                "rings",    GAUGE,   "", "Rings that are open here.")
EPF_ROW(JOB, LANES,                 "lanes",                "lanes",    GAUGE,   "", "Lanes to other engines.")
EPF_ROW(JOB, WAITS,                 "waits",                "waits",    GAUGE,   "", "Ranks, rings, lanes and peers that wait and do not move.")
EPF_ROW(JOB, LOOK_NS,               "look_ns",              "ns",       GAUGE,   "", "When the engine last looked at all this: CLOCK_MONOTONIC.")
EPF_ROW(JOB, RANKS_HIDDEN,          "ranks_hidden",         "ranks",    GAUGE,   "", "Ranks without a block: the file has no room (stats-blocks).")
EPF_ROW(JOB, RINGS_HIDDEN,          "rings_hidden",         "rings",    GAUGE,   "", "Rings without a block; those that wait come first.")
EPF_ROW(JOB, LANES_HIDDEN,          "lanes_hidden",         "lanes",    GAUGE,   "", "Lanes without a block; those that wait come first.")
EPF_ROW(JOB, PEERS_HIDDEN,          "peers_hidden",         "ranks",    GAUGE,   "", "Peers without a block; those that wait come first.")
EPF_ROW(JOB, WAITS_HIDDEN,          "waits_hidden",         "waits",    GAUGE,   "", "Waits that no block describes.")
EPF_END(JOB)

EPF_CLASS(RANK, "rank", "One rank that this core serves.", "core=num rank=num")
EPF_ROW(RANK, STATE,                "state",                "state",    STATE,   "down|connecting|up|draining|masked|left", "Life of the rank.")
EPF_ROW(RANK, PID,                  "pid",                  "process",  GAUGE,   "", "Its process, in the writer's PID namespace.")
EPF_ROW(RANK, ACTIVE_NS,            "active_ns",            "ns",       GAUGE,   "", "When it last pushed a command or began another wait: CLOCK_MONOTONIC.")
EPF_ROW(RANK, WAIT,                 "wait",                 "state",    STATE,   EPF_STATS_WAIT_NAMES, "What a thread of it sleeps for (signal, ring), and since when nothing of that moved.")
EPF_ROW(RANK, WAIT_NUMBER,          "wait_number",          "number",   GAUGE,   "", "The signal or the ring.")
EPF_ROW(RANK, WAIT_VALUE,           "wait_value",           "number",   GAUGE,   "", "Where it stands.")
EPF_ROW(RANK, WAIT_LEAST,           "wait_least",           "number",   GAUGE,   "", "Where it must come to.")
EPF_ROW(RANK, WAIT_RANK,            "wait_rank",            "rank",     GAUGE,   "", "The rank that raised this signal last: the one that is likely to be missing.")
EPF_ROW(RANK, WAIT_KERNEL,          "wait_kernel",          "number",   GAUGE,   "", "1: a kernel of a GPU waits, for longer than a millisecond; 0: a thread.")
EPF_END(RANK)

EPF_CLASS(FLIGHT, "flight", "The last events of one core.", "core=num")
EPF_ROW(FLIGHT, CLOCK_TSC,          "clock_tsc",            "cycles",   GAUGE,   "", "Time-stamp counter at clock_ns.")
EPF_ROW(FLIGHT, CLOCK_NS,           "clock_ns",             "ns",       GAUGE,   "", "CLOCK_MONOTONIC at clock_tsc.")
EPF_ROW(FLIGHT, WRITTEN,            "written",              "events",   COUNTER, "", "Events written so far; the newest of them are kept.")
EPF_ROW(FLIGHT, EVENTS,             "events",               "events",   EVENTS,  "", "The flight recorder: ep-fabric trace prints it.")
EPF_END(FLIGHT)
/* clang-format on */

#undef EPF_CLASS
#undef EPF_ROW
#undef EPF_END
