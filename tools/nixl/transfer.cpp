/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers and notifications of a back end (engine.h). */
#include "tools/nixl/engine.h"

#include <algorithm>
#include <cerrno>

using namespace epf_nixl;

namespace
{

/* Returns the offset of a part of a range, or -ERANGE. */
int64_t offset_in(const nixlMetaDesc &part, uintptr_t base, size_t bytes)
{
	const uintptr_t offset = part.addr - base;

	if (part.addr < base || offset > bytes || part.len > bytes - offset)
		return -ERANGE;
	return static_cast<int64_t>(offset);
}

} /* namespace */

/* Blocks of a transfer, and the runs of them between the same two ranges. */
struct epf_nixl::Blocks {
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
