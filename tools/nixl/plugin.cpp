/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libplugin_EPF.so: a back end of NIXL's agents over epf_p2p.h. The agent calls it from the program's threads and carries its metadata: an
 * endpoint's metadata is the connection information of an agent, an export key is the public data of a registered range. Transfers,
 * notifications and progress are the endpoint's; its thread runs whatever the agent's settings say, so that a program that computes
 * is a target all the same, and whoever polls a transfer copies part of it (epf_p2p_test).
 *
 * Connections and imports are made by the first transfer that needs them, or by the agent's make_connection.
 */
#include "fabric/client/epf.h"
#include "fabric/p2p/epf_p2p.h"

#ifdef EPF_NIXL_SOURCE
# include "backend/backend_engine.h"
# include "backend/backend_plugin.h"
#else
# include "tools/nixl/nixl_abi.h"
#endif

#include <errno.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

namespace
{

/* NIXL's status for an errno of ours. */
nixl_status_t status_of(int rc)
{
	switch (rc) {
	case 0:
		return NIXL_SUCCESS;
	case -ECONNRESET:
	case -ECONNREFUSED:
	case -EPIPE:
		return NIXL_ERR_REMOTE_DISCONNECT;
	case -ECANCELED:
		return NIXL_ERR_CANCELED;
	case -EBUSY:
		return NIXL_ERR_REPOST_ACTIVE;
	case -ENOENT:
		return NIXL_ERR_NOT_FOUND;
	case -EBADMSG:
		return NIXL_ERR_MISMATCH;
	case -EINVAL:
	case -ERANGE:
		return NIXL_ERR_INVALID_PARAM;
	case -EACCES:
	case -EPERM:
	case -EKEYREVOKED:
	case -EKEYEXPIRED:
		return NIXL_ERR_NOT_ALLOWED;
	default:
		return NIXL_ERR_BACKEND;
	}
}

/* Prints a line, once if the same error comes again and again, because programs poll. */
void say(const char *line)
{
	static std::mutex mutex;
	static std::string last;
	const std::lock_guard<std::mutex> lock(mutex);

	if (last == line)
		return;
	last = line;
	fprintf(stderr, "ep-fabric: NIXL: %s\n", line);
}

/* The edge: prints the line of a failed call, because NIXL keeps only its status. */
nixl_status_t report(int rc)
{
	if (rc < 0)
		say(epf_last_error());
	return status_of(rc);
}

nixl_status_t refuse(nixl_status_t status, const std::string &line)
{
	say(line.c_str());
	return status;
}

/* Another agent, or this one. Its connection is made when it is first needed, and again if it has ended. */
struct Peer {
	explicit Peer(std::string info) : metadata(std::move(info))
	{
	}

	const std::string metadata;
	std::mutex mutex;
	uint64_t conn = 0; /* 0: none yet. Under mutex, as the imports of its ranges. */
};

/* A registered range. */
struct Region final : nixlBackendMD {
	explicit Region(const nixlBlobDesc &mem)
	    : nixlBackendMD(true), base(mem.addr), bytes(mem.len)
	{
	}

	const uintptr_t base;
	const size_t bytes;
	uint64_t region = 0;
	uint8_t key[EPF_P2P_KEY_BYTES] = {};
};

/* A range that a peer has registered. Imported over the peer's connection by the first transfer that uses it. */
struct Remote final : nixlBackendMD {
	Remote(std::shared_ptr<Peer> owner, uintptr_t addr, size_t len, const void *export_key)
	    : nixlBackendMD(false), peer(std::move(owner)), base(addr), bytes(len)
	{
		memcpy(key, export_key, sizeof(key));
	}

	const std::shared_ptr<Peer> peer;
	const uintptr_t base;
	const size_t bytes;
	uint8_t key[EPF_P2P_KEY_BYTES];
	uint64_t conn = 0; /* over which it was imported */
	uint64_t import = 0;
};

struct Request final : nixlBackendReqH {
	epf_p2p_xfer *xfer = nullptr;

	~Request() override
	{
		epf_p2p_xfer_free(xfer);
	}
};

/* Returns the offset of a part of a range, or -ERANGE. */
int64_t offset_in(const nixlMetaDesc &part, uintptr_t base, size_t bytes)
{
	const uintptr_t offset = part.addr - base;

	if (part.addr < base || offset > bytes || part.len > bytes - offset)
		return -ERANGE;
	return static_cast<int64_t>(offset);
}

/* Blocks of a transfer, and the runs of them between the same two ranges. */
struct Blocks {
	std::vector<struct epf_p2p_block> blocks;
	std::vector<epf_p2p_vector> vectors;

	/* Appends a block to the last run, in parts if it is too long for one. */
	void add(uint64_t local, uint64_t remote, uint64_t bytes)
	{
		do {
			const auto part = static_cast<uint32_t>(
				std::min<uint64_t>(bytes, EPF_P2P_BLOCK_BYTES));

			blocks.push_back(epf_p2p_block(local, remote, part));
			vectors.back().count++;
			local += part;
			remote += part;
			bytes -= part;
		} while (bytes);
	}

	/* Sets the runs' pointers once all blocks are there. */
	void close()
	{
		const struct epf_p2p_block *next = blocks.data();

		for (auto &v : vectors) {
			v.blocks = next;
			next += v.count;
		}
	}
};

} /* namespace */

class epfNixlEngine final : public nixlBackendEngine
{
      public:
	explicit epfNixlEngine(const nixlBackendInitParams *params);
	~epfNixlEngine() override;

	bool supportsRemote() const override
	{
		return true;
	}

	bool supportsLocal() const override
	{
		return true;
	}

	bool supportsNotif() const override
	{
		return true;
	}

	nixl_mem_list_t getSupportedMems() const override
	{
		return { DRAM_SEG, VRAM_SEG };
	}

	nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &nixl_mem,
				  nixlBackendMD *&out) override;
	nixl_status_t deregisterMem(nixlBackendMD *meta) override;
	nixl_status_t connect(const std::string &remote_agent) override;
	nixl_status_t disconnect(const std::string &remote_agent) override;
	nixl_status_t unloadMD(nixlBackendMD *input) override;
	nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &remote_agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *opt_args) const override;
	nixl_status_t postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &remote_agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *opt_args) const override;
	nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;
	nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &str) const override;
	nixl_status_t getConnInfo(std::string &str) const override;
	nixl_status_t loadRemoteConnInfo(const std::string &remote_agent,
					 const std::string &remote_conn_info) override;
	nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &nixl_mem,
				   const std::string &remote_agent,
				   nixlBackendMD *&output) override;
	nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) override;
	nixl_status_t getNotifs(notif_list_t &notif_list) override;
	nixl_status_t genNotif(const std::string &remote_agent,
			       const std::string &msg) const override;

      private:
	std::shared_ptr<Peer> find(const std::string &agent) const;
	bool is_open(uint64_t conn) const;
	int connection(Peer &peer, uint64_t *conn) const;
	int import_over(Remote &remote, uint64_t conn, uint64_t *import) const;
	int gather(const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, uint64_t conn,
		   Blocks *out) const;
	bool make_note(const std::string &message, std::string *note) const;

	epf_p2p *ep = nullptr;
	std::string own_metadata;
	mutable std::mutex mutex; /* of what follows */
	std::unordered_map<std::string, std::shared_ptr<Peer>> peers;
	std::set<uint64_t> unused; /* connections of agents that were removed */
};

epfNixlEngine::epfNixlEngine(const nixlBackendInitParams *params) : nixlBackendEngine(params)
{
	std::vector<std::string> lines;
	std::vector<const char *> settings;
	const std::string name = localAgent.substr(0, EPF_P2P_NAME_BYTES - 1);
	char metadata[EPF_P2P_METADATA_BYTES];
	epf_p2p_options opts;
	int rc;

	for (const auto &[key, value] : *params->customParams)
		lines.push_back(key + "=" + value);
	for (const auto &line : lines)
		settings.push_back(line.c_str());
	settings.push_back(nullptr);
	epf_p2p_options_init(&opts);
	opts.name = name.empty() ? nullptr : name.c_str();
	opts.settings = settings.data();
	initErr = true;
	if (localAgent.size() > UINT8_MAX) {
		say("the name of an agent is at most 255 bytes: shorten it");
		return;
	}
	if (epf_p2p_open(&opts, &ep) < 0) {
		say(epf_last_error());
		return;
	}
	rc = epf_p2p_metadata(ep, metadata, sizeof(metadata));
	if (rc < 0) {
		say(epf_last_error());
		return;
	}
	own_metadata.assign(metadata, static_cast<size_t>(rc));
	peers[localAgent] = std::make_shared<Peer>(own_metadata);
	initErr = false;
}

epfNixlEngine::~epfNixlEngine()
{
	epf_p2p_close(ep);
}

std::shared_ptr<Peer> epfNixlEngine::find(const std::string &agent) const
{
	const std::lock_guard<std::mutex> lock(mutex);
	const auto it = peers.find(agent);

	return it == peers.end() ? nullptr : it->second;
}

bool epfNixlEngine::is_open(uint64_t conn) const
{
	struct epf_p2p_peer info = {};

	info.size = sizeof(info);
	return epf_p2p_peer(ep, conn, &info) == 0 && info.state == 0;
}

/* Returns the connection of a peer, and makes it if there is none or if it has ended. The caller holds peer.mutex. */
int epfNixlEngine::connection(Peer &peer, uint64_t *conn) const
{
	if (peer.conn && !is_open(peer.conn)) {
		epf_p2p_disconnect(ep, peer.conn, EPF_P2P_NOW);
		peer.conn = 0;
	}
	if (!peer.conn) {
		const int rc = epf_p2p_connect(ep, peer.metadata.data(), peer.metadata.size(), 0,
					       &peer.conn);

		if (rc < 0) {
			peer.conn = 0;
			return rc;
		}
	}
	*conn = peer.conn;
	return 0;
}

/* Returns the import of a range over a connection of its peer. The caller holds the peer's mutex. */
int epfNixlEngine::import_over(Remote &remote, uint64_t conn, uint64_t *import) const
{
	if (remote.conn != conn) {
		uint64_t made;
		const int rc = epf_p2p_import(ep, conn, remote.key, 0, &made);

		if (rc < 0)
			return rc;
		remote.conn = conn;
		remote.import = made;
	}
	*import = remote.import;
	return 0;
}

nixl_status_t epfNixlEngine::registerMem(const nixlBlobDesc &mem, const nixl_mem_t &nixl_mem,
					 nixlBackendMD *&out)
{
	const bool is_gpu = nixl_mem == VRAM_SEG;
	auto region = std::make_unique<Region>(mem);
	int rc;

	if (nixl_mem != DRAM_SEG && !is_gpu)
		return NIXL_ERR_NOT_SUPPORTED;
	rc = epf_p2p_register(ep, reinterpret_cast<void *>(mem.addr), mem.len,
			      is_gpu ? static_cast<int>(mem.devId) : EPF_P2P_HOST, &region->region);
	if (rc < 0)
		return report(rc);
	rc = epf_p2p_export(ep, region->region, 0, mem.len, EPF_P2P_READ | EPF_P2P_WRITE, 0, 0,
			    region->key);
	if (rc < 0) {
		const nixl_status_t status = report(rc);

		epf_p2p_deregister(ep, region->region, 0);
		return status;
	}
	out = region.release();
	return NIXL_SUCCESS;
}

/* Agents ignore the result: the line on standard error is what says that memory must not be freed yet. */
nixl_status_t epfNixlEngine::deregisterMem(nixlBackendMD *meta)
{
	const std::unique_ptr<Region> region(static_cast<Region *>(meta));

	return report(epf_p2p_deregister(ep, region->region, 0));
}

nixl_status_t epfNixlEngine::getPublicData(const nixlBackendMD *meta, std::string &str) const
{
	const auto *region = static_cast<const Region *>(meta);

	str.assign(reinterpret_cast<const char *>(region->key), sizeof(region->key));
	return NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::getConnInfo(std::string &str) const
{
	str = own_metadata;
	return NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::loadRemoteConnInfo(const std::string &remote_agent,
						const std::string &remote_conn_info)
{
	struct epf_p2p_peer info = {};
	int rc;

	info.size = sizeof(info);
	rc = epf_p2p_describe(remote_conn_info.data(), remote_conn_info.size(), &info);
	if (rc < 0)
		return report(rc);
	const std::lock_guard<std::mutex> lock(mutex);
	auto &peer = peers[remote_agent];

	if (!peer || peer->metadata != remote_conn_info)
		peer = std::make_shared<Peer>(remote_conn_info);
	return NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::connect(const std::string &remote_agent)
{
	const auto peer = find(remote_agent);
	uint64_t conn;

	if (!peer)
		return NIXL_ERR_NOT_FOUND;
	if (remote_agent ==
	    localAgent) /* the agent asks this of every back end when it creates it */
		return NIXL_SUCCESS;
	const std::lock_guard<std::mutex> lock(peer->mutex);

	return report(connection(*peer, &conn));
}

/*
 * Ends this side's use. The connection stays while the peer lives, because both directions share it and an agent that has not removed
 * this one may be sending: what it sends must arrive, as over other back ends. Adding the agent again finds the same connection.
 */
nixl_status_t epfNixlEngine::disconnect(const std::string &remote_agent)
{
	const auto peer = find(remote_agent);
	uint64_t conn;

	if (!peer)
		return NIXL_ERR_NOT_FOUND;
	if (remote_agent == localAgent)
		return NIXL_SUCCESS;
	{
		const std::lock_guard<std::mutex> lock(peer->mutex);

		conn = peer->conn;
	}
	const std::lock_guard<std::mutex> lock(mutex);

	peers.erase(remote_agent);
	if (conn)
		unused.insert(conn);
	for (auto it = unused.begin(); it != unused.end();) {
		if (is_open(*it)) {
			++it;
			continue;
		}
		epf_p2p_disconnect(ep, *it, EPF_P2P_NOW);
		it = unused.erase(it);
	}
	return NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &nixl_mem,
					  const std::string &remote_agent, nixlBackendMD *&output)
{
	auto peer = find(remote_agent);

	if (nixl_mem != DRAM_SEG && nixl_mem != VRAM_SEG)
		return NIXL_ERR_NOT_SUPPORTED;
	if (!peer)
		return NIXL_ERR_NOT_FOUND;
	if (input.metaInfo.size() != EPF_P2P_KEY_BYTES)
		return refuse(NIXL_ERR_MISMATCH,
			      "metadata of agent " + remote_agent + ": " +
				      std::to_string(input.metaInfo.size()) +
				      " bytes where an export key has 64: is its EPF back end of "
				      "this version?");
	output = new Remote(std::move(peer), input.addr, input.len, input.metaInfo.data());
	return NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output)
{
	const auto *region = static_cast<const Region *>(input);

	output = new Remote(find(localAgent), region->base, region->bytes, region->key);
	return NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::unloadMD(nixlBackendMD *input)
{
	const std::unique_ptr<Remote> remote(static_cast<Remote *>(input));

	epf_p2p_release(ep, remote->import);
	return NIXL_SUCCESS;
}

/* Turns two lists of descriptors into blocks. The caller holds the mutex of the peer, whose connection is conn. */
int epfNixlEngine::gather(const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
			  uint64_t conn, Blocks *out) const
{
	const auto count = static_cast<size_t>(local.descCount());
	const Region *region = nullptr;
	const Remote *target = nullptr;

	out->blocks.reserve(count);
	for (size_t i = 0; i < count; i++) {
		const nixlMetaDesc &l = local[i], &r = remote[i];

		if (l.metadataP != region || r.metadataP != target || i == 0) {
			auto *imported = static_cast<Remote *>(r.metadataP);
			uint64_t import;
			const int rc = import_over(*imported, conn, &import);

			if (rc < 0)
				return rc;
			region = static_cast<const Region *>(l.metadataP);
			target = imported;
			out->vectors.push_back({ region->region, import, nullptr, 0 });
		}
		const int64_t from = offset_in(l, region->base, region->bytes);
		const int64_t to = offset_in(r, target->base, target->bytes);

		if (from < 0 || to < 0 || l.len != r.len)
			return -EDOM;
		out->add(static_cast<uint64_t>(from), static_cast<uint64_t>(to), l.len);
	}
	out->close();
	return 0;
}

nixl_status_t epfNixlEngine::prepXfer(const nixl_xfer_op_t &operation,
				      const nixl_meta_dlist_t &local,
				      const nixl_meta_dlist_t &remote,
				      const std::string &remote_agent, nixlBackendReqH *&handle,
				      const nixl_opt_b_args_t *) const
{
	const auto peer = find(remote_agent);
	auto request = std::make_unique<Request>();
	Blocks list;
	uint64_t conn;
	int rc;

	if (!peer)
		return NIXL_ERR_NOT_FOUND;
	if (local.descCount() != remote.descCount())
		return NIXL_ERR_INVALID_PARAM;
	const std::lock_guard<std::mutex> lock(peer->mutex);

	rc = connection(*peer, &conn);
	if (!rc)
		rc = gather(local, remote, conn, &list);
	if (rc == -EDOM)
		return refuse(NIXL_ERR_INVALID_PARAM,
			      "a descriptor lies outside the registered range that the agent found "
			      "for it, or differs in length from its counterpart");
	if (!rc)
		rc = epf_p2p_prepare(
			ep, conn, operation == NIXL_READ ? EPF_P2P_OP_READ : EPF_P2P_OP_WRITE,
			list.vectors.data(), list.vectors.size(), nullptr, &request->xfer);
	if (rc < 0)
		return report(rc);
	handle = request.release();
	return NIXL_SUCCESS;
}

/*
 * A notification: the length of the sender's name in one byte, the name, and the user's message. The name travels because the
 * connection that brings a notification may be gone when the program asks for it.
 */
bool epfNixlEngine::make_note(const std::string &message, std::string *note) const
{
	if (1 + localAgent.size() + message.size() > EPF_P2P_NOTE_BYTES) {
		say(("a notification of " + std::to_string(message.size()) + " bytes: at most " +
		     std::to_string(EPF_P2P_NOTE_BYTES - 1 - localAgent.size()) +
		     " fit beside the agent's name")
			    .c_str());
		return false;
	}
	note->reserve(1 + localAgent.size() + message.size());
	note->push_back(static_cast<char>(localAgent.size()));
	note->append(localAgent).append(message);
	return true;
}

nixl_status_t epfNixlEngine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
				      const nixl_meta_dlist_t &, const std::string &,
				      nixlBackendReqH *&handle,
				      const nixl_opt_b_args_t *opt_args) const
{
	const auto *request = static_cast<const Request *>(handle);
	std::string note;
	int rc;

	if (opt_args && opt_args->hasNotif && !make_note(opt_args->notifMsg, &note))
		return NIXL_ERR_INVALID_PARAM;
	rc = epf_p2p_post(request->xfer, note.empty() ? nullptr : note.data(), note.size());
	return rc < 0 ? report(rc) : checkXfer(handle);
}

nixl_status_t epfNixlEngine::checkXfer(nixlBackendReqH *handle) const
{
	const int rc = epf_p2p_test(static_cast<const Request *>(handle)->xfer);

	if (rc > 0)
		return NIXL_SUCCESS;
	return rc == 0 ? NIXL_IN_PROG : report(rc);
}

nixl_status_t epfNixlEngine::releaseReqH(nixlBackendReqH *handle) const
{
	delete handle;
	return NIXL_SUCCESS;
}

/* Connections that come and go need nothing here: whoever uses one that has ended gets its error. */
nixl_status_t epfNixlEngine::getNotifs(notif_list_t &notif_list)
{
	epf_p2p_event events[64];
	int count;

	do {
		count = epf_p2p_events(ep, events, std::size(events));
		for (int i = 0; i < count; i++) {
			const auto *data = static_cast<const char *>(events[i].data);
			const size_t bytes = events[i].bytes;
			const size_t name = bytes ? static_cast<uint8_t>(data[0]) : 0;

			if (events[i].kind == EPF_P2P_NOTE && bytes > name)
				notif_list.emplace_back(
					std::string(data + 1, name),
					std::string(data + 1 + name, bytes - 1 - name));
			else if (events[i].kind == EPF_P2P_NOTE)
				say("a notification without its sender's name: dropped; its sender "
				    "is no EPF back end of this version");
			epf_p2p_event_free(&events[i]);
		}
	} while (count == static_cast<int>(std::size(events)));
	return count < 0 ? report(count) : NIXL_SUCCESS;
}

nixl_status_t epfNixlEngine::genNotif(const std::string &remote_agent, const std::string &msg) const
{
	const auto peer = find(remote_agent);
	std::string note;
	uint64_t conn;
	int rc;

	if (!peer)
		return NIXL_ERR_NOT_FOUND;
	if (!make_note(msg, &note))
		return NIXL_ERR_INVALID_PARAM;
	{
		const std::lock_guard<std::mutex> lock(peer->mutex);

		rc = connection(*peer, &conn);
	}
	if (!rc)
		rc = epf_p2p_notify(ep, conn, note.data(), note.size(), 0);
	return report(rc);
}

namespace
{

/* Finds NIXL's library among those that are loaded. */
int find_nixl(dl_phdr_info *info, size_t, void *out)
{
	const std::filesystem::path path(info->dlpi_name);

	if (path.filename() != "libnixl.so")
		return 0;
	*static_cast<std::filesystem::path *>(out) = path;
	return 1;
}

/* Returns the version of the wheel that NIXL's library comes from: SITE/.NAME.mesonpy.libs/libnixl.so. Empty if it is from none. */
std::string wheel_version()
{
	const std::string tail = ".mesonpy.libs", info = ".dist-info";
	std::filesystem::path path;
	std::error_code error;

	dl_iterate_phdr(find_nixl, &path);
	const auto folder = path.parent_path();
	std::string name = folder.filename();

	if (name.size() <= tail.size() + 1 || !name.ends_with(tail))
		return "";
	name = name.substr(1, name.size() - 1 - tail.size()) + "-";
	for (const auto &entry : std::filesystem::directory_iterator(folder.parent_path(), error)) {
		const std::string dir = entry.path().filename();

		if (dir.starts_with(name) && dir.ends_with(info))
			return dir.substr(name.size(), dir.size() - name.size() - info.size());
	}
	return "";
}

/* The interface has one version number for releases that differ: true if the one that runs is one this was tried with. */
bool is_known(const std::string &version)
{
	unsigned major = 0, minor = 0;

	if (sscanf(version.c_str(), "%u.%u", &major, &minor) != 2)
		return true; /* not from a wheel: the agent compares the interface's version, and nothing more can be known */
#ifdef EPF_NIXL_SOURCE
	unsigned built_major = 0, built_minor = 0;

	sscanf(EPF_NIXL_SOURCE, "%u.%u", &built_major, &built_minor);
	return major == built_major && minor == built_minor;
#else
	return major == 1 && minor >= 3 && minor <= 5;
#endif
}

nixlBackendEngine *create_engine(const nixlBackendInitParams *params)
{
	return new epfNixlEngine(params);
}

void destroy_engine(nixlBackendEngine *engine)
{
	delete engine;
}

const char *plugin_name()
{
	return "EPF";
}

/* No list: every setting is one (docs/config.md). */
nixl_b_params_t backend_options()
{
	return {};
}

nixl_mem_list_t backend_mems()
{
	return { DRAM_SEG, VRAM_SEG };
}

} /* namespace */

extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
	static nixlBackendPlugin plugin = {
		NIXL_PLUGIN_API_VERSION, create_engine, destroy_engine, plugin_name, epf_version,
		backend_options,         backend_mems
	};
	const std::string version = wheel_version();

	if (is_known(version))
		return &plugin;
#ifdef EPF_NIXL_SOURCE
	say(("version " + version +
	     " runs, and libplugin_EPF.so was built for " EPF_NIXL_SOURCE
	     ": build it with the source of " +
	     version + " (meson option nixl_source)")
		    .c_str());
#else
	say(("version " + version +
	     " is none that libplugin_EPF.so was tried with (1.3 to 1.5): install one of these, or "
	     "build the plug-in with the source of " +
	     version + " (meson option nixl_source)")
		    .c_str());
#endif
	return nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
