/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a back end, its connections, and the memory that agents register (engine.h). */
#include "tools/nixl/engine.h"

using namespace epf_nixl;

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
