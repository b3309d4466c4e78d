// SPDX-License-Identifier: Apache-2.0
//
// Round trip of a put with a signal between kernels on two GPUs through NCCL's device API, and puts in a row until a flush is over: through NCCL's proxy thread and
// the plug-in with NCCL_GIN_TYPE=2, by the plug-in's own queues with 4. The counterpart over our own ring is `ep-bench p2p --gpu --op put_add`. On one GPU the ranks
// share it (MPS, NCCL_MULTI_RANK_GPU_ENABLE=1). Compiled by tools/frameworks/nccl_clients.py against the headers of the NCCL that it packs,
// and run by tests/gpu/nccl_clients.sh. Every arrived value is checked. Exit 0: all were right.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                                                     \
 do {                                                                                   \
  auto rc_ = (call);                                                                    \
  if (rc_ != 0) {                                                                       \
   fprintf(stderr, "# %s: %d, NCCL: %s\n", #call, (int)rc_, ncclGetLastError(nullptr)); \
   _exit(1);                                                                            \
  }                                                                                     \
 } while (0)

static constexpr int ROUNDS = 1000;
static constexpr int THREADS = 128, EACH = 64;
static constexpr size_t HALF = 1 << 20;

static __device__ uint64_t now()
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

// Sends what it has written into the first half of its window to the second half of the peer's, and waits for the same.
static __global__ void bounce(ncclDevComm comm, ncclWindow_t window, char *memory, size_t bytes,
			      uint64_t first, uint64_t *times, unsigned *wrong)
{
	ncclGin gin{ comm, 0 };
	volatile uint64_t *out = reinterpret_cast<uint64_t *>(memory);
	volatile uint64_t *in = reinterpret_cast<uint64_t *>(memory + HALF);
	size_t last = bytes / 8 - 1;

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t value = first + i + 1, begin = now();

		if (comm.rank == 1)
			gin.waitSignal(ncclCoopThread(), 0, value);
		out[0] = out[last] = value;
		gin.put(ncclTeamWorld(comm), 1 - comm.rank, window, HALF, window, 0, bytes,
			ncclGin_StrongSignalInc{ 0 });
		if (comm.rank == 0)
			gin.waitSignal(ncclCoopThread(), 0, value);
		if (in[0] != value || in[last] != value)
			(*wrong)++;
		gin.flush(ncclCoopThread());
		times[i] = now() - begin;
	}
}

// Puts of all threads, from the first half of the window to the same places of the peer's second half, and a flush.
static __global__ void flood(ncclDevComm comm, ncclWindow_t window, size_t bytes, uint64_t *time)
{
	ncclGin gin{ comm, 0 };
	uint64_t begin = now();

	for (int i = 0; i < EACH; i++) {
		size_t at = (i * THREADS + threadIdx.x) % (HALF / bytes) * bytes;

		gin.put(ncclTeamWorld(comm), 1 - comm.rank, window, HALF + at, window, at, bytes);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		gin.flush(ncclCoopThread());
		*time = now() - begin;
	}
}

// Meets the other rank, on the CPU.
static void meet(volatile int *there, int place)
{
	__atomic_add_fetch(&there[place], 1, __ATOMIC_ACQ_REL);
	while (there[place] < 2)
		usleep(100);
}

// The same with random bytes in rank 0's window: returns how many are wrong at rank 1.
static unsigned rates(ncclDevComm device, ncclWindow_t window, char *memory, uint64_t *time,
		      volatile int *there)
{
	std::vector<char> sent(HALF), came(HALF);
	unsigned bad = 0;
	int place = 1;

	for (size_t bytes : { 8, 1024, 7168 }) {
		size_t end = bytes * EACH * THREADS < HALF ? bytes * EACH * THREADS
							   : HALF / bytes * bytes;
		std::vector<double> took;

		srand(static_cast<unsigned>(bytes));
		for (char &c : sent)
			c = static_cast<char>(rand());
		CHECK(cudaMemcpy(memory, sent.data(), HALF, cudaMemcpyHostToDevice));
		CHECK(cudaMemset(memory + HALF, 0xee, HALF));
		CHECK(cudaDeviceSynchronize());
		meet(there, place++);
		for (int round = 0; round < 5 && device.rank == 0; round++) {
			flood<<<1, THREADS>>>(device, window, bytes, time);
			CHECK(cudaDeviceSynchronize());
			took.push_back(static_cast<double>(*time) / (EACH * THREADS));
		}
		meet(there, place++);
		CHECK(cudaMemcpy(came.data(), memory + HALF, HALF, cudaMemcpyDeviceToHost));
		for (size_t i = 0; i < HALF && device.rank == 1; i++)
			bad += came[i] != (i < end ? sent[i] : static_cast<char>(0xee));
		std::sort(took.begin(), took.end());
		if (device.rank == 0)
			printf("# GIN puts in a row, %zu bytes: %.3f us each, median of 5 times %d\n",
			       bytes, took[2] / 1e3, EACH * THREADS);
		fflush(stdout);
		meet(there, place++);
	}
	if (bad)
		printf("# WRONG: %u bytes of puts in a row\n", bad);
	return bad;
}

static int rank_of(int rank, ncclUniqueId *id, volatile int *there)
{
	ncclComm_t comm;
	ncclWindow_t window;
	ncclDevComm device;
	ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
	ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
	void *memory;
	uint64_t *times, first = 0;
	unsigned *wrong, bad = 0;
	int gpus = 1;

	CHECK(cudaGetDeviceCount(&gpus));
	CHECK(cudaSetDevice(rank % gpus));
	if (rank == 0) {
		CHECK(ncclGetUniqueId(id));
		*there = 1;
	}
	while (!*there)
		usleep(1000);
	CHECK(ncclCommInitRank(&comm, 2, *id, rank));
	CHECK(ncclCommQueryProperties(comm, &properties));
	printf("# rank %d: device API %d, GIN type %d (2: proxy, 4: queues of the plug-in)\n", rank,
	       properties.deviceApiSupport, properties.ginType);
	fflush(stdout);
	CHECK(ncclMemAlloc(&memory, 2 * HALF));
	CHECK(cudaMemset(memory, 0, 2 * HALF));
	CHECK(ncclCommWindowRegister(comm, memory, 2 * HALF, &window, NCCL_WIN_COLL_SYMMETRIC));
	needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
	needs.ginContextCount = 1;
	needs.ginSignalCount = 1;
	CHECK(ncclDevCommCreate(comm, &needs, &device));
	CHECK(cudaMallocManaged(&times, ROUNDS * sizeof(*times)));
	CHECK(cudaMallocManaged(&wrong, sizeof(*wrong)));
	*wrong = 0;
	for (size_t bytes : { 8, 4096, 7168, 65536 }) {
		bounce<<<1, 1>>>(device, window, static_cast<char *>(memory), bytes, first, times,
				 wrong);
		CHECK(cudaDeviceSynchronize());
		first += ROUNDS;
		std::vector<uint64_t> t(times + ROUNDS / 10, times + ROUNDS);
		std::sort(t.begin(), t.end());
		bad += *wrong;
		if (rank == 0)
			printf("# GIN put with signal, %zu bytes: round trip %.2f us median, %.2f us 99th of 100, %u wrong\n",
			       bytes, t[t.size() / 2] / 1e3, t[t.size() * 99 / 100] / 1e3, *wrong);
		fflush(stdout);
	}
	bad += rates(device, window, static_cast<char *>(memory), times, there);
	CHECK(ncclDevCommDestroy(comm, &device));
	CHECK(ncclCommWindowDeregister(comm, window));
	CHECK(ncclMemFree(memory));
	CHECK(ncclCommDestroy(comm));
	return bad != 0;
}

int main()
{
	void *shared =
		mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ncclUniqueId *id = static_cast<ncclUniqueId *>(shared);
	volatile int *there = reinterpret_cast<int *>(static_cast<char *>(shared) + 2048);
	int failed = 0;

	for (int rank = 0; rank < 2; rank++)
		if (fork() == 0)
			_exit(rank_of(rank, id, there));
	for (int rank = 0; rank < 2; rank++) {
		int status = 0;

		wait(&status);
		failed |= status;
	}
	return failed != 0;
}
