// SPDX-License-Identifier: Apache-2.0
//
// Calls against bare TensorPipe that sends the same there and back: "null" is a function without arguments, "short" the
// same registered as a short one, "echo" returns the array that it is given. --options names the agent: "tensorpipe"
// (the default, both over shm), "tensorpipe?transports=uv" (both over uv), "process_group" (over the backend shm;
// TensorPipe over uv, whose threads sleep while it has nothing to do).
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "backplane/rpc.hpp"
#include "bench/bare_tensorpipe.hpp"
#include "bench/contest.hpp"
#include "bench/two_ranks.hpp"

namespace backplane::bench {
namespace {

using Bytes = std::vector<uint8_t>;

rpc::Worker join(int rank, const Store& store, const std::string& agent) {
  rpc::RpcOptions options;
  options.backend = agent;
  options.group = "shm";
  options.store = store.with_prefix("rpc");
  options.rank = rank;
  options.world_size = 2;
  return rpc::Worker::join("worker" + std::to_string(rank), options);
}

// What was sent is what comes back.
void check(const rpc::Worker& worker, BareTensorPipe* bare, uint64_t bytes) {
  Bytes data(bytes);
  std::iota(data.begin(), data.end(), uint8_t{1});
  const Bytes expected = data;
  bare->round_trip(&data);
  if (data != expected) throw std::runtime_error("wrong bytes from TensorPipe");
  const auto answer = worker.rpc_sync<rpc::Array<uint8_t>>(1, "echo", rpc::Array<uint8_t>(data.data(), data.size()));
  if (!std::equal(answer.begin(), answer.end(), expected.begin(), expected.end())) {
    throw std::runtime_error("wrong bytes from a call");
  }
}

void body(int rank, const std::filesystem::path& directory, const Arguments& arguments) {
  const std::string agent = arguments.options.empty() ? "tensorpipe" : arguments.options;
  const std::string transport =
      agent.starts_with("tensorpipe") && agent.find("=uv") == std::string::npos ? "shm" : "uv";
  Store store = Store::file((directory / "store").string());
  rpc::register_function("null", [] {});
  rpc::register_short_function("short", [] {});
  rpc::register_function("echo", [](const rpc::Array<uint8_t>& data) { return data; });
  GroupOptions options;
  options.backend = "shm";
  options.store = store.with_prefix("group");
  options.rank = rank;
  options.world_size = 2;
  ProcessGroup group = ProcessGroup::create(options);
  BareTensorPipe bare(rank, store, transport);
  const rpc::Worker worker = join(rank, store, agent);
  std::vector<Outcome> outcomes;
  std::vector<Subject> subjects = {{"null", 0, 20, 1}, {"short", 0, 20, 1}};
  for (const uint64_t bytes : {4 << 10, 1 << 20, 64 << 20}) {
    subjects.push_back({"echo", bytes, bytes > (1 << 16) ? 1 : 20, 1});
  }
  for (const Subject& subject : subjects) {
    const uint64_t bytes = subject.bytes;
    const bool null = bytes == 0;
    if (rank == 0 && !null) check(worker, &bare, bytes);
    Bytes data(bytes);
    const rpc::Array<uint8_t> array(data.data(), data.size());
    // Rank 1 answers on threads of its own.
    const Action idle = [] {};
    const Action bare_call = [&bare, &data] { bare.round_trip(&data); };
    const Action our_call = [&worker, &array, &subject, null] {
      if (null) return worker.rpc_sync(1, subject.what);
      worker.rpc_sync<rpc::Array<uint8_t>>(1, "echo", array);
    };
    outcomes.push_back(contest(subject, arguments, group, rank == 0 ? bare_call : idle, rank == 0 ? our_call : idle));
  }
  worker.shutdown();
  group.barrier();  // nobody leaves before the other is done
  if (rank == 0) print("tensorpipe", outcomes, arguments.json);
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  using namespace backplane::bench;  // NOLINT: this is its main
  const Arguments arguments = parse(argc, argv);
  return on_two_ranks(
      [&arguments](int rank, const std::filesystem::path& directory) { body(rank, directory, arguments); });
}
