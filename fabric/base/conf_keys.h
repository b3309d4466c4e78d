/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of configuration. Each row becomes a typed field of struct epf_conf, an option
 * (--ring-slots), an environment variable (EPF_RING_SLOTS), a key of the configuration file
 * (ring-slots or ring_slots), a line of ep-fabric config and of docs/config.md. To add a setting,
 * add a row; there is no other place.
 *
 * Included several times, after defining what is wanted of these, each defaulting to nothing:
 *   EPF_ENUM(set) EPF_NAME(SET, ID, "text") EPF_ENUM_END(set)   the words of an ENUM, as
 *       enum epf_conf_<set> { EPF_CONF_<SET>_<ID> }
 *   G(GROUP, "title")   the rows up to the next G belong to this group
 *   K(field, "option-name", TYPE, "default", MIN, MAX, LEVEL, "ALIAS1 ALIAS2", "Doc.")
 *   V("EPF_NAME", "Doc.")   a variable that is read from the environment only
 * TYPE (the field's C type)      MIN and MAX             what is written
 *   BOOL (bool)                  0, 1                    yes, no
 *   UINT (uint64_t)              the value               123 or 0x7b
 *   POW2 (uint64_t)              the value               a power of two
 *   AUTO (int64_t, -1 = auto)    the value               auto, or a number
 *   SIZE (uint64_t, bytes)       the value               4096, 64k, 2MiB, 1.5G: powers of 1024
 *   TIME (uint64_t, ns)          the value               100us, 1.5ms, 2s; 0 needs no unit
 *   PROB (double)                0, 1                    decimal with at most 9 decimals
 *   ENUM(set) (enum epf_conf_x)  0, 0                    one of the words
 *   STRING, PATH (char *)        length                  text; empty only if the default is
 *   SECRET (char *)              length                  text, from the environment only
 *   LIST (struct epf_conf_list)  number of items         texts with commas
 *   CPUS (struct epf_conf_cpus)  a CPU number            0,2-5
 * The default is read by the same parser. LEVEL is BASIC or EXPERT. Aliases are variables of other
 * products that stand in for a setting that nothing else has set. Doc: one or two sentences, with
 * the unit; no double quotes. Contains rows only.
 */
#ifndef EPF_ENUM
# define EPF_ENUM(set)
#endif
#ifndef EPF_NAME
# define EPF_NAME(set, id, text)
#endif
#ifndef EPF_ENUM_END
# define EPF_ENUM_END(set)
#endif
#ifndef G
# define G(id, title)
#endif
#ifndef K
# define K(field, option, type, def, min, max, level, aliases, doc)
#endif
#ifndef V
# define V(name, doc)
#endif

/* clang-format off */
EPF_ENUM(nic)
EPF_NAME(NIC, AUTO,      "auto")
EPF_NAME(NIC, EMU,       "emu")
EPF_NAME(NIC, NULL,      "null")
EPF_NAME(NIC, VERBS,     "verbs")
EPF_NAME(NIC, EFA,       "efa")
EPF_NAME(NIC, TCP,       "tcp")
EPF_NAME(NIC, OFI,       "ofi")
EPF_ENUM_END(nic)
EPF_ENUM(compress)
EPF_NAME(COMPRESS, NONE,  "none")
EPF_NAME(COMPRESS, SPLIT, "split")
EPF_NAME(COMPRESS, FULL,  "full")
EPF_ENUM_END(compress)
EPF_ENUM(backend)
EPF_NAME(BACKEND, NONE,    "none")
EPF_NAME(BACKEND, DEEP_EP, "deep_ep")
EPF_NAME(BACKEND, NVSHMEM, "nvshmem")
EPF_NAME(BACKEND, NCCL,    "nccl")
EPF_ENUM_END(backend)
EPF_ENUM(idle)
EPF_NAME(IDLE, SPIN,     "spin")
EPF_NAME(IDLE, PAUSE,    "pause")
EPF_NAME(IDLE, SLEEP,    "sleep")
EPF_ENUM_END(idle)
EPF_ENUM(bind)
EPF_NAME(BIND, NEAR,     "near")
EPF_NAME(BIND, ANY,      "any")
EPF_ENUM_END(bind)
EPF_ENUM(progress)
EPF_NAME(PROGRESS, THREAD, "thread")
EPF_NAME(PROGRESS, CALLER, "caller")
EPF_ENUM_END(progress)
EPF_ENUM(post)
EPF_NAME(POST, AUTO,     "auto")
EPF_NAME(POST, LISTS,    "lists")
EPF_ENUM_END(post)
EPF_ENUM(gpu)
EPF_NAME(GPU, AUTO,      "auto")
EPF_NAME(GPU, CUDA,      "cuda")
EPF_NAME(GPU, HIP,       "hip")
EPF_NAME(GPU, FAKE,      "fake")
EPF_NAME(GPU, NONE,      "none")
EPF_ENUM_END(gpu)
EPF_ENUM(order)
EPF_NAME(ORDER, ORDERED,   "ordered")
EPF_NAME(ORDER, UNORDERED, "unordered")
EPF_ENUM_END(order)
EPF_ENUM(gpu_copy)
EPF_NAME(GPU_COPY, ENGINE, "engine")
EPF_NAME(GPU_COPY, KERNEL, "kernel")
EPF_ENUM_END(gpu_copy)

G(JOB, "Job and ranks")
K(job,                  "job",                  STRING, "",      1, 127, BASIC, "", "Name of the job; ranks join each other only under the same name. Empty: the launcher's job number, if it has one.")
K(rank,                 "rank",                 AUTO,   "auto",  0, 4095, BASIC, "", "Number of this rank in the job. auto: from the launcher's variables (torchrun, Slurm, PMIx, Open MPI).")
K(world_size,           "world-size",           AUTO,   "auto",  1, 4096, BASIC, "", "Ranks in the job. auto: from the launcher's variables.")
K(local_rank,           "local-rank",           AUTO,   "auto",  0, 4095, BASIC, "", "Number of this rank among those of its node. auto: from the launcher's variables.")
K(node,                 "node",                 STRING, "",      1, 63, BASIC, "", "Name of the node this rank runs on; ranks with one name are on one node. Empty: the host name.")
K(instance,             "instance",             STRING, "",      1, 63, BASIC, "", "Name of this instance in statistics and file names. Empty: made from the process number; of a daemon: node.")
K(service,              "service",              STRING, "",      1, 107, BASIC, "", "Which ep-fabric daemon serves this rank: its instance name, or the path of its socket. Empty: none, the engine runs inside the process.")
K(service_timeout_ns,   "service-timeout",      TIME,   "10s",   1000000, 3600000000000, BASIC, "", "Longest wait for the daemon: to appear, and for each answer.")
K(job_weight,           "job-weight",           UINT,   "1",     1, 255, BASIC, "", "Share of this job against other jobs on the same daemon. The first rank of a job on a node says it.")

G(BOOT, "Rendezvous")
K(rendezvous,           "rendezvous",           STRING, "",      3, 300, BASIC, "", "Where ranks meet, as host:port or [IPv6 address]:port; rank 0 listens there. Empty: from the launcher's variables.")
K(socket_ifname,        "socket-ifname",        STRING, "",      1, 255, BASIC, "NCCL_SOCKET_IFNAME", "Network interfaces for the rendezvous and for nic tcp, which uses each that fits as a link, as name prefixes with commas; ^ in front excludes, = means the exact name. Empty: the interface that routes to the rendezvous.")
K(secret_file,          "secret-file",          PATH,   "",      1, 4095, BASIC, "", "File with the job's shared secret: the whole file but its last line end. A file that others can read is used with a warning.")
K(secret,               "secret",               SECRET, "",      16, 4096, BASIC, "", "The job's shared secret, from the environment only. Neither this, secret-file nor EPF_SECRET_FD: the rendezvous listens on loopback only.")
K(bootstrap_timeout_ns, "bootstrap-timeout",    TIME,   "60s",   1000000, 86400000000000, BASIC, "", "Longest wait for all ranks to meet.")

G(LAUNCH, "Launcher")
K(launch_rsh,           "launch-rsh",           STRING, "ssh -T", 1, 255, BASIC, "", "Remote shell of ep-fabric launch, as words; host and command are added. none: start only the ranks of this host, where the same command runs on every host and secret-file or EPF_SECRET is given to all.")

G(ENGINE, "Engine")
K(progress,             "progress",             ENUM(progress), "thread", 0, 0, BASIC, "", "Who runs the engine core: a dedicated thread, or the caller inside its waits.")
K(cpu,                  "cpu",                  CPUS,   "",      0, 4095, BASIC, "", "CPUs that the engine core may run on. Empty: as core-bind says.")
K(core_bind,            "core-bind",            ENUM(bind), "near", 0, 0, EXPERT, "", "Where an engine core runs when cpu says nothing: near (the CPUs next to the RDMA device it uses, one alone if core-idle is spin; memory of their NUMA node) or any. emu and null have no device.")
K(core_idle,            "core-idle",            ENUM(idle), "sleep", 0, 0, BASIC, "", "What an idle core does: spin (fastest, a whole CPU), pause (spins gently), sleep (after core-idle-after, until work comes; it pauses while kernels push commands, because they cannot wake it).")
K(core_idle_after_ns,   "core-idle-after",      TIME,   "50us",  0, 10000000000, EXPERT, "", "Quiet time before an idle core sleeps.")
K(core_batch,           "core-batch",           UINT,   "128",   1, 256, EXPERT, "", "At most this many commands are dequeued from a ring in one step; a step never waits to fill it.")
K(ring_slots,           "ring-slots",           POW2,   "4096",  64, 65536, EXPERT, "", "Command slots of a ring.")
K(ring_window,          "ring-window",          UINT,   "8192",  64, 1048576, EXPERT, "", "Commands of one ring that may be in flight or deferred.")
K(defer_limit,           "defer-limit",           UINT,   "256",   1, 65536, EXPERT, "", "Commands without credit that are set aside for each ring and peer before the ring waits.")
K(regions,              "regions",              UINT,   "64",    1, 4096, EXPERT, "", "Memory regions that a rank may register.")
K(signals,              "signals",              UINT,   "4096",  1, 65536, EXPERT, "", "Signal counters of a rank.")
K(window,               "window",               POW2,   "1024",  64, 32768, EXPERT, "", "Arrivals of one stream that may be out of order at once on an unordered NIC.")
K(start_count,          "start-count",          UINT,   "0",     0, 4294967295, EXPERT, "", "First value of all running counts of streams and lanes: for tests of their wrap; the same on every rank.")
K(connect_threads,      "connect-threads",      UINT,   "8",     1, 64, EXPERT, "", "Threads that create and connect the lanes of a job when it is joined, where the NIC lets several do so.")
K(peer_timeout_ns,      "peer-timeout",         TIME,   "10s",   1000000, 3600000000000, BASIC, "", "Silence after which a peer with work in flight counts as down.")
K(peer_silence_ns,      "peer-silence",         TIME,   "25s",   0, 3600000000000, EXPERT, "", "Time without a heartbeat of a peer's engine after which it counts as down though its NIC still answers: stopped, hung. Longer than registering the largest region takes; the same on every node. 0: never.")
K(wait_timeout_ns,      "wait-timeout",         TIME,   "30s",   1000000, 86400000000000, BASIC, "", "Deadline of a wait that was given none.")
K(stats_dir,            "stats-dir",            PATH,   "",      1, 4000, BASIC, "", "Directory of the statistics files. Empty: ep-fabric in XDG_RUNTIME_DIR, or /tmp/ep-fabric-UID where that is not set.")
K(stats_blocks,         "stats-blocks",         UINT,   "128",   8, 4096, EXPERT, "", "Rings, lanes and peers, so many of each, that a rank's statistics file shows, those that wait first; a daemon's shows four times as many for all its jobs. The others are counted.")
K(call_stats,           "call-stats",           BOOL,   "yes",   0, 1, BASIC, "", "Let the kernels of dispatch and combine count what they wait for, and show it in a statistics file: Buffer.why_slow() and ep-fabric why. no: nothing is counted.")

G(GPU, "Kernels on a GPU")
K(gpu_backend,          "gpu-backend",          ENUM(gpu), "auto", 0, 0, BASIC, "", "Driver of the GPU whose kernels push commands, and whose memory regions may be: auto (cuda, else hip), cuda, hip, fake (host memory, for tests) or none.")
K(gpu_own_context,      "gpu-own-context",      BOOL,   "no",    0, 1, BASIC, "", "The software NIC and TCP copy GPU memory in a CUDA context of their own: their copies then go on while another thread of the process loads a kernel, if the memory is of cuMemCreate. Additions to GPU memory, which are kernels, are made in the program's context, and in the other one only while they cannot be: there they take turns with the program's kernels, in slices of 2 ms.")
K(gpu_device,           "gpu-device",           AUTO,   "auto",  0, 255, BASIC, "", "Number of the GPU, as its driver counts. auto: the calling thread's current one.")
K(gpu_rings,            "gpu-rings",            UINT,   "132",   0, 2048, BASIC, "", "Private rings for kernels: each serves one thread, warp or block at a time. More producers than these share a ring.")
K(gpu_ring_slots,       "gpu-ring-slots",       POW2,   "256",   64, 65536, EXPERT, "", "Command slots of a private ring for kernels.")
K(gpu_shared_rings,     "gpu-shared-rings",     UINT,   "1",     1, 64, EXPERT, "", "Rings that all producers without a private one share.")
K(gpu_shared_slots,     "gpu-shared-slots",     POW2,   "4096",  64, 65536, EXPERT, "", "Command slots of a shared ring for kernels.")
K(gpu_timeout_ns,       "gpu-timeout",          TIME,   "10s",   1000000, 86400000000000, BASIC, "", "Deadline of every wait inside a kernel.")

G(NIC, "NIC and flow control")
K(nic,                  "nic",                  ENUM(nic), "auto", 0, 0, BASIC, "", "Kind of NIC: auto (in a job of several hosts efa or verbs where such a device is active, else tcp; on one host emu), emu (software NIC over shared memory), verbs (RDMA devices: InfiniBand, RoCE), efa (Elastic Fabric Adapters), tcp (sockets, between hosts without RDMA), ofi (libfabric, with the provider that ofi-provider names) or null (completes everything, moves nothing; for measuring).")
K(nic_device,           "nic-device",           LIST,   "",      0, 64, BASIC, "NCCL_IB_HCA", "RDMA devices that may be used, as NAME or NAME:PORT, each a prefix; ^ in front takes all others, = makes names exact. ofi: domains of libfabric. emu and null have none. Empty: any whose port is active.")
K(nic_count,            "nic-count",            UINT,   "0",     0, 8, EXPERT, "", "RDMA devices that one job uses at once, with failover between them; lanes-per-peer becomes a multiple of it. 0: those that nic-device names, or one when that is empty. tcp: the most interfaces, 0: all that socket-ifname names.")
K(gid_index,            "gid-index",            AUTO,   "auto",  0, 255, EXPERT, "NCCL_IB_GID_INDEX", "Index of the GID of an RDMA device; emu and null have none. auto: a routable RoCE v2 one first.")
K(lanes_per_peer,       "lanes-per-peer",       UINT,   "2",     1, 8, EXPERT, "", "Lanes (queue pairs) to each peer node.")
K(streams_per_peer,     "streams-per-peer",     UINT,   "512",   16, 8192, EXPERT, "", "Streams (one per ring, and one per lane for all groups of counted puts) that each peer rank may open to this rank, and groups; at most 8,192 of each between two daemons.")
K(lane_depth,           "lane-depth",           UINT,   "256",   4, 32768, EXPERT, "", "Posted work requests that a lane holds.")
K(lane_receives,        "lane-receives",        UINT,   "512",   4, 32767, EXPERT, "", "Posted receives of a lane; they bound what its peer may send without a grant.")
K(nic_inflight_bytes,   "nic-inflight-bytes",   SIZE,   "64MiB", 65536, 1099511627776, EXPERT, "", "Payload that may be in flight on one NIC.")
K(nic_inflight_messages, "nic-inflight-messages", UINT, "8192",  1, 1048576, EXPERT, "", "Messages that may be in flight on one NIC.")
K(rank_inflight_bytes,  "rank-inflight-bytes",  SIZE,   "16MiB", 65536, 1099511627776, EXPERT, "", "Payload that one rank may have in flight.")
K(rank_inflight_messages, "rank-inflight-messages", UINT, "4096", 1, 1048576, EXPERT, "", "Messages that one rank may have in flight.")

G(EMU, "Software NIC")
K(emu_order,            "emu-order",            ENUM(order), "ordered", 0, 0, BASIC, "", "Order of delivery of the software NIC: ordered like RC, unordered like SRD.")
K(emu_mtu_bytes,        "emu-mtu",              SIZE,   "4096",  256, 65536, EXPERT, "", "Payload of a packet of the software NIC.")
K(emu_packets,          "emu-packets",          UINT,   "4096",  16, 65536, EXPERT, "", "Packets in the pool of a software NIC: what it may have in flight to all its peers.")
K(emu_seed,             "emu-seed",             UINT,   "1",     0, 9223372036854775807, BASIC, "", "Seed of everything that the software NIC does at random.")
K(emu_delay_ns,         "emu-delay",            TIME,   "0",     0, 10000000000, BASIC, "", "Longest random delay of a packet.")
K(emu_reorder,          "emu-reorder",          PROB,   "0",     0, 1, BASIC, "", "Probability that a packet is held back behind later ones (unordered only).")
K(emu_duplicate,        "emu-duplicate",        PROB,   "0",     0, 1, BASIC, "", "Probability that an arrival is reported twice.")
K(emu_drop,             "emu-drop",             PROB,   "0",     0, 1, BASIC, "", "Probability that a packet is lost and sent again.")
K(emu_error,            "emu-error",            PROB,   "0",     0, 1, EXPERT, "", "Probability that a work request completes with an error.")
K(emu_retransmit_ns,    "emu-retransmit",       TIME,   "200us", 1000, 10000000000, EXPERT, "", "Wait before a lost packet is sent again.")
K(emu_retry_timeout_ns, "emu-retry-timeout",    TIME,   "5s",    1000000, 3600000000000, EXPERT, "", "Silence of a peer, whose process is run meanwhile, after which a work request of the software NIC fails.")
K(emu_stall_timeout_ns, "emu-stall-timeout",    TIME,   "30s",   0, 3600000000000, EXPERT, "", "The same while the peer's process is not run: the machine is too busy, or it was stopped. Below emu-retry-timeout: no difference is made.")
K(emu_links,            "emu-links",            UINT,   "1",     1, 8, EXPERT, "", "Links of the software NIC: lane L of a peer travels on link L modulo this, so that a test can cut one of them.")
K(emu_link_timeout_ns,  "emu-link-timeout",     TIME,   "0",     0, 3600000000000, EXPERT, "", "Time after which a work request on a link that is cut at this end fails, as on real NICs that know their link. 0: emu-retry-timeout.")
K(emu_rnr_timeout_ns,   "emu-rnr-timeout",      TIME,   "2s",    1000, 3600000000000, EXPERT, "", "Longest wait of an arrival of the software NIC for a posted receive.")
K(emu_gpu_copy,       "emu-gpu-copy",       ENUM(gpu_copy), "engine", 0, 0, BASIC, "", "Who copies GPU memory for the software NIC: the copy engines, or short kernels of the process that runs the engine (faster; wants MPS, and SMs that applications leave free).")

G(VERBS, "Verbs NIC")
K(verbs_port,           "verbs-port",           AUTO,   "auto",  1, 255, BASIC, "", "Port of the RDMA device. auto: the first one that is active.")
K(verbs_order,          "verbs-order",          ENUM(order), "ordered", 0, 0, EXPERT, "", "What the verbs NIC says of its order; unordered makes the engine count every write, as it must over several NICs.")
K(verbs_service_level,  "verbs-service-level",  UINT,   "0",     0, 15, BASIC, "NCCL_IB_SL", "Service level of all lanes; efa: 0 is the device's own.")
K(verbs_traffic_class,  "verbs-traffic-class",  UINT,   "0",     0, 255, BASIC, "NCCL_IB_TC", "Traffic class of all lanes; over RoCE v2 the IP header's, whose upper 6 bits are the DSCP.")
K(verbs_priority_class, "verbs-priority-class", AUTO,   "auto",  0, 255, BASIC, "", "Traffic class of the lanes of jobs whose job-weight is above 1, so that ports and switches that are set up for it let them go first. auto: as verbs-traffic-class.")
K(verbs_mtu,            "verbs-mtu",            AUTO,   "auto",  256, 4096, EXPERT, "", "Payload of a packet in bytes: 256, 512, 1024, 2048 or 4096. auto: the port's; the smaller of the two ends counts.")
K(verbs_timeout,        "verbs-timeout",        UINT,   "14",    1, 31, EXPERT, "", "Wait for an acknowledgement before a packet is sent again: 4.096 us times 2 to the power of this (14: 67 ms).")
K(verbs_retries,        "verbs-retries",        UINT,   "6",     0, 7, EXPERT, "", "Times a packet is sent again before its lane fails. Soft-RoCE takes 7 as without end.")
K(verbs_rnr_retries,    "verbs-rnr-retries",    UINT,   "6",     0, 7, EXPERT, "", "Times a message to a peer without receives is sent again before its lane fails; 7: without end. Also for efa.")
K(verbs_inline,         "verbs-inline",         UINT,   "128",   0, 1024, EXPERT, "", "Bytes that a work request may carry in itself; devices that have less are given what they have.")
K(verbs_signal_interval, "verbs-signal-interval", UINT, "32",    1, 1024, EXPERT, "", "One completion is asked for every so many work requests of a lane, and for the last of each batch.")
K(verbs_completions,    "verbs-completions",    UINT,   "16384", 64, 4194304, EXPERT, "", "Work requests that a NIC may have outstanding: the size of its completion queue. Also for efa and ofi.")
K(verbs_receives,       "verbs-receives",       UINT,   "32767", 64, 1048576, EXPERT, "", "Receives that a NIC may have posted: the size of its shared receive queue. Lanes share them. Also for efa, where each lane has its part.")
K(verbs_post,           "verbs-post",           ENUM(post), "auto", 0, 0, EXPERT, "", "How work is posted: auto (ibv_wr_ functions where the device has them) or lists (ibv_post_send).")
K(verbs_relaxed_ordering, "verbs-relaxed-ordering", BOOL, "yes", 0, 1, EXPERT, "", "Let the device write payload in any order over PCIe; arrivals are reported after it all the same.")

G(EFA, "EFA NIC")
K(efa_inline,           "efa-inline",           UINT,   "32",    0, 128, EXPERT, "", "Bytes that a work request may carry in itself; devices that have less are given what they have. Up to 32 for messages only; more: writes too, and a lane holds half as many work requests.")
K(efa_unsolicited,      "efa-unsolicited",      BOOL,   "yes",   0, 1, EXPERT, "", "Where the device can, let writes with immediate arrive without consuming a posted receive.")
K(efa_flush_wait_ns,    "efa-flush-wait",       TIME,   "200ms", 1000, 60000000000, EXPERT, "", "Wait for the completions of a failed lane before what is outstanding counts as flushed.")

G(TCP, "TCP NIC")
K(tcp_timeout_ns,       "tcp-timeout",          TIME,   "2s",    1500000000, 3600000000000, BASIC, "", "Silence of a peer's host, which answers a keepalive once a second, after which a connection to it counts as broken, and the wait for each of its addresses when it is connected to.")
K(tcp_congestion,       "tcp-congestion",       STRING, "",      1, 15, BASIC, "", "Congestion control of what nic tcp sends, a name of /proc/sys/net/ipv4/tcp_allowed_congestion_control: cubic, for example, where the system's is BBR and no sysctl can be set. Empty: the system's.")
K(wire_encryption,      "wire-encryption",      BOOL,   "no",    0, 1, BASIC, "", "Encrypt and authenticate what nic tcp sends (ChaCha20-Poly1305, keys from the handshake, so from the job's secret); the same at all ends. Other NICs that leave the machine refuse it.")
K(tcp_reset_after,      "tcp-reset-after",      UINT,   "0",     0, 1099511627776, EXPERT, "", "For tests: lanes of the TCP NIC with even numbers reset their connection after so many work requests, and again when they are open again. 0: never.")

G(OFI, "ofi NIC (libfabric)")
K(ofi_provider,         "ofi-provider",         STRING, "",      1, 63, BASIC, "", "Provider of libfabric, as fi_info names it: cxi, efa, shm, tcp. Peers of tcp, net, sockets and udp are not authenticated, so they have to be named. Empty: cxi, else efa.")
K(ofi_timeout_ns,       "ofi-timeout",          TIME,   "10s",   1000000, 3600000000000, BASIC, "", "Time without progress after which a lane with outstanding work fails. Longer than a peer's engine may be stopped: with most providers nothing moves without it.")
K(ofi_remote_data,      "ofi-remote-data",      BOOL,   "yes",   0, 1, EXPERT, "", "Send notifications as remote CQ data where the provider carries 8 bytes of it. no: as messages, each after its write has completed.")
K(ofi_fail_after,       "ofi-fail-after",       UINT,   "0",     0, 1099511627776, EXPERT, "", "For tests: lanes of the ofi NIC with even numbers fail after so many work requests, and again when they are open again. 0: never.")

G(SERVICE, "Service daemon")
K(runtime_dir,          "runtime-dir",          PATH,   "",      1, 80, BASIC, "", "Directory of the daemon's socket, INSTANCE.sock; clients that name an instance look there. Empty: the directory of the statistics files.")
K(service_group,        "service-group",        STRING, "",      1, 31, BASIC, "", "Group whose members may use the daemon: it gets directory (0750) and socket (0660). Empty: the daemon's own group.")
K(fabric_secret_file,   "fabric-secret-file",   PATH,   "",      1, 4095, BASIC, "", "File with the secret that the daemons of a cluster share and clients must not know. Empty: EPF_FABRIC_SECRET_FD, else none, which is enough only for NICs that do not leave the machine.")
K(service_cores,        "service-cores",        UINT,   "1",     1, 64, BASIC, "", "Engine threads of the daemon; each job runs on one of them.")
K(service_fair,         "service-fair",         BOOL,   "yes",   0, 1, EXPERT, "", "Share a core's time between jobs by weight. no: a job keeps its turn as long as it has work (for measuring).")
K(service_quantum_ns,   "service-quantum",      TIME,   "50us",  1000, 1000000000, EXPERT, "", "Turn of a job of weight 1 on a core.")
K(service_fill,         "service-fill",         BOOL,   "no",    0, 1, EXPERT, "", "Allocate all memory of a region when it is registered, so that a lack of memory is reported there. no: pages are allocated when first touched, except where a device pins them or the kernel's overcommit accounting is strict (vm.overcommit_memory=2).")
K(service_grace_ns,     "service-grace",        TIME,   "2s",    0, 3600000000000, EXPERT, "", "How long a job stays after its last rank on this node was lost, so that it can rejoin.")
K(service_clients,      "service-clients",      UINT,   "1024",  1, 65536, BASIC, "", "Connections of the daemon in all.")
K(service_strangers,    "service-strangers",    UINT,   "64",    1, 65536, EXPERT, "", "Connections that have not said HELLO yet; past it the oldest is closed.")
K(service_stranger_timeout_ns, "service-stranger-timeout", TIME, "5s", 1000000, 3600000000000, EXPERT, "", "Time a new connection has for its HELLO, and any client for the rest of a message it has begun.")
K(user_clients,         "user-clients",         UINT,   "512",   1, 65536, BASIC, "", "Connections of one user.")
K(user_jobs,            "user-jobs",            UINT,   "32",    1, 4096, BASIC, "", "Jobs of one user on this node.")
K(user_rings,           "user-rings",           UINT,   "4096",  1, 1048576, BASIC, "", "Rings of one user.")
K(user_regions,         "user-regions",         UINT,   "8192",  1, 1048576, BASIC, "", "Registered regions of one user.")
K(user_bytes,           "user-bytes",           SIZE,   "1TiB",  65536, 1125899906842624, BASIC, "", "Registered memory of one user.")
K(user_engine_bytes,    "user-engine-bytes",    SIZE,   "16GiB", 65536, 1125899906842624, BASIC, "", "Memory that the engines of one user's jobs may take: for the packets of the software NIC (emu-packets), and for peers, which grows with the nodes of a job and the streams between them.")
K(user_signals,         "user-signals",         UINT,   "4194304", 1, 268435456, BASIC, "", "Signals of one user.")
K(client_rings,         "client-rings",         UINT,   "256",   1, 4096, BASIC, "", "Rings of one client.")

G(P2P, "Point to point")
K(p2p_compress,         "p2p-compress",         ENUM(compress), "none", 0, 0, BASIC, "", "Endpoints compress floating-point payloads between machines, without loss, while that saves time; those of GPU memory if nvCOMP 6 is installed. split: the exponents; full: the mantissas too. The weaker of both ends counts.")
K(p2p_compress_min,     "p2p-compress-min",     SIZE,   "2MiB",  0, 1099511627776, EXPERT, "", "Transfers of at least this size are compressed.")
K(p2p_local,            "p2p-local",            BOOL,   "yes",   0, 1, EXPERT, "", "Endpoints of one machine copy directly between their processes. no: over the NIC, as between machines.")

G(BACKEND, "Back end of programs")
K(backend,              "backend",              ENUM(backend), "none", 0, 0, BASIC, "", "What carries the traffic of programs that ep-fabric exec or launch starts: our own deep_ep, NVSHMEM through the shim, or NCCL through the plug-in. none: whatever the program's own variables choose.")

G(SHIM, "Shim for DeepEP programs")
K(shim_heap,            "shim-heap",            SIZE,   "4GiB",  67108864, 1099511627776, BASIC, "NVSHMEM_SYMMETRIC_SIZE", "Bytes of a rank's symmetric heap; 36 MiB of it are the shim's own.")
K(shim_host_heap,       "shim-host-heap",       BOOL,   "no",    0, 1, EXPERT, "", "Put the symmetric heap into host memory that the GPU can reach, instead of the GPU's own. For trials: the kernels' fences do not order their bytes for a CPU.")
K(shim_rings,           "shim-rings",           UINT,   "24",    1, 1024, BASIC, "NVSHMEM_IBGDA_NUM_RC_PER_PE", "Work-request rings to each rank; a program asks for as many as it has local experts or channels.")
K(shim_depth,           "shim-depth",           UINT,   "1024",  128, 32768, BASIC, "NVSHMEM_QP_DEPTH", "Slots of a work-request ring, rounded up to a power of two.")
K(shim_fabric_rings,    "shim-fabric-rings",    UINT,   "8",     1, 64, EXPERT, "", "Rings of the fabric that the work-request rings of a rank are dealt to.")
K(shim_no_p2p,          "shim-no-p2p",          BOOL,   "no",    0, 1, BASIC, "NVSHMEM_DISABLE_P2P", "Map no peer's heap: every byte goes by the fabric.")
K(shim_modules,         "shim-modules",         LIST,   "deep_ep", 1, 16, EXPERT, "", "The shim serves programs and libraries whose file name contains one of these words, or whose folder has one as its name; calls of others go to the real NVSHMEM.")

V("EPF_CONFIG", "Configuration file to read, as --config.")
V("EPF_LOG",    "Log level, or component=level items with commas: EPF_LOG=info,boot=debug. Levels: error, warning, note, info, debug.")
V("EPF_FABRIC_SECRET_FD", "Number of an inherited descriptor from which the daemons' shared secret is read.")
V("EPF_SECRET_FD", "Number of an inherited descriptor from which the job's shared secret is read.")
V("EPF_LIBRARY", "Path of libepf.so for the Python package. Not set: where it was installed, else where the loader finds it.")
V("EPF_LL_LIBRARY", "Path of libepf-ll.so, the low-latency kernels, for the Python package. Not set: beside libepf.")
V("EPF_LL_SENDER_SUMS", "When the Python package's combines sum at the sender: off, auto or always (docs/reference/python.md). The same at all ranks. Not set: auto.")
V("EPF_PYTHON_EXTENSION", "off: the Python package calls the libraries by ctypes alone, not by its extension (tools/python/epf/_call.c): the same results, slower.")
V("EPF_LOCAL_WORLD_SIZE", "Ranks on this node, where no launcher says it.")
V("EPF_NODE_ID", "Number of this node in the job, where no launcher says it.")
V("EPF_PORT",   "Port of the rendezvous, where the host comes from the launcher.")
V("EPF_PORT_OFFSET", "What is added to torchrun's MASTER_PORT to get the port of the rendezvous. Not set: 137.")
V("EPF_SEED",   "Seed that replays a failed property test; read by the tests.")
V("EPF_SEEDS",  "How many seeds a property test runs; read by the tests.")
V("EPF_PROC_SEEDS", "How many seeds a test with real processes runs; read by the tests.")
V("EPF_TEST_LONG", "1: tests run their long form; read by the tests.")
V("EPF_BOOTSTRAP_SERVER", "Set: a rendezvous server runs on its own (ep-fabric bootstrap serve), so rank 0 starts none.")
/* clang-format on */

#undef EPF_ENUM
#undef EPF_NAME
#undef EPF_ENUM_END
#undef G
#undef K
#undef V
