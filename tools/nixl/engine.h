/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The back end that libplugin_EPF.so is: a class of NIXL's agents over epf_p2p.h. The agent calls it from the program's threads and carries its
 * metadata: an endpoint's metadata is the connection information of an agent, an export key is the public data of a registered range. Transfers,
 * notifications and progress are the endpoint's; its thread runs whatever the agent's settings say, so that a program that computes
 * is a target all the same, and whoever polls a transfer copies part of it (epf_p2p_test).
 *
 * Connections and imports are made by the first transfer that needs them, or by the agent's make_connection.
 */
#ifndef EPF_NIXL_ENGINE_H
#define EPF_NIXL_ENGINE_H

#include "fabric/client/epf.h"
#include "fabric/p2p/epf_p2p.h"

#ifdef EPF_NIXL_SOURCE
# include "backend/backend_engine.h"
# include "backend/backend_plugin.h"
#else
# include "tools/nixl/nixl_abi.h"
#endif

#include <cstring>
#include <memory>
#include <set>

namespace epf_nixl
{

/* report.cpp. Prints a line, once if the same error comes again and again, because programs poll. */
void say(const char *line);
/* The edge: prints the line of a failed call, because NIXL keeps only its status, which it returns. */
nixl_status_t report(int rc);
/* Prints a line of the caller's, and returns status. */
nixl_status_t refuse(nixl_status_t status, const std::string &line);

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

/* Blocks of a transfer (transfer.cpp). */
struct Blocks;

} /* namespace epf_nixl */

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
	std::shared_ptr<epf_nixl::Peer> find(const std::string &agent) const;
	bool is_open(uint64_t conn) const;
	int connection(epf_nixl::Peer &peer, uint64_t *conn) const;
	int import_over(epf_nixl::Remote &remote, uint64_t conn, uint64_t *import) const;
	int gather(const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, uint64_t conn,
		   epf_nixl::Blocks *out) const;
	bool make_note(const std::string &message, std::string *note) const;

	epf_p2p *ep = nullptr;
	std::string own_metadata;
	mutable std::mutex mutex; /* of what follows */
	std::unordered_map<std::string, std::shared_ptr<epf_nixl::Peer>> peers;
	std::set<uint64_t> unused; /* connections of agents that were removed */
};

#endif
