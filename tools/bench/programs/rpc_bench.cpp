// SPDX-License-Identifier: Apache-2.0
//
// RPC calls compared with bare TensorPipe, which sends the same data there and back. "null": a function without
// arguments; "inline": the same, registered as an inline function; "echo": returns its array argument, in new memory on
// both contestants. --options selects the agent: "tensorpipe" (default, both over shm), "tensorpipe?transports=uv"
// (both over uv), "process_group" (over the backend shm; TensorPipe over uv, whose idle threads sleep).
#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backplane/rpc.hpp"
#include "programs/bare_tensorpipe.hpp"
#include "programs/comparison.hpp"
#include "programs/two_ranks.hpp"

namespace backplane::bench {
namespace {

using Bytes = std::vector<uint8_t>;

// Creates the bare library and the worker for each turn.
class Contestants {
 public:
  Contestants(int rank, const Store& store, std::string agent)
      : rank_(rank),
        store_(store),
        agent_(std::move(agent)),
        transport_(agent_.starts_with("tensorpipe") && agent_.find("=uv") == std::string::npos ? "shm" : "uv") {}

  std::shared_ptr<BareTensorPipe> bare() {
    Store store = next_store();
    return std::make_shared<BareTensorPipe>(rank_, store, transport_);
  }
  std::shared_ptr<rpc::Worker> worker() {
    rpc::RpcOptions options;
    options.backend = agent_;
    options.group = "shm";
    options.store = next_store();
    options.rank = rank_;
    options.world_size = 2;
    return {new rpc::Worker(rpc::Worker::join("worker" + std::to_string(rank_), options)), [](rpc::Worker* worker) {
              worker->shutdown();
              delete worker;
            }};
  }

 private:
  Store next_store() { return store_.with_prefix("turn" + std::to_string(++turns_)); }

  const int rank_;
  const Store store_;
  const std::string agent_;
  const std::string transport_;
  int turns_ = 0;
};

// Checks that the reply equals the request.
void check(const rpc::Worker& worker, BareTensorPipe* bare, uint64_t bytes) {
  Bytes data(bytes);
  std::iota(data.begin(), data.end(), uint8_t{1});
  const Bytes expected = data;
  Bytes back(bytes);
  bare->round_trip(&data, &back);
  if (back != expected || data != expected) throw std::runtime_error("wrong bytes from TensorPipe");
  const auto reply = worker.rpc_sync<rpc::Array<uint8_t>>(1, "echo", rpc::Array<uint8_t>(data.data(), data.size()));
  if (!std::equal(reply.begin(), reply.end(), expected.begin(), expected.end())) {
    throw std::runtime_error("wrong bytes from a call");
  }
}

void body(int rank, const std::filesystem::path& directory, const Arguments& arguments) {
  Store store = Store::file((directory / "store").string());
  rpc::register_function("null", [] {});
  rpc::register_inline_function("inline", [] {});
  rpc::register_function("echo", [](const rpc::Array<uint8_t>& data) { return data; });
  GroupOptions options;
  options.backend = "shm";
  options.store = store.with_prefix("group");
  options.rank = rank;
  options.world_size = 2;
  ProcessGroup group = ProcessGroup::create(options);
  Contestants contestants(rank, store, arguments.options.empty() ? "tensorpipe" : arguments.options);
  std::vector<Outcome> outcomes;
  std::vector<Scenario> scenarios = {{"null", 0, 20, 1}, {"inline", 0, 20, 1}};
  for (const uint64_t bytes : {4 << 10, 1 << 20, 64 << 20}) {
    scenarios.push_back({"echo", bytes, bytes > (1 << 16) ? 1 : 20, 1});
  }
  for (const Scenario& scenario : scenarios) {
    Bytes data(scenario.bytes);
    Bytes back(scenario.bytes);
    const rpc::Array<uint8_t> array(data.data(), data.size());
    if (scenario.bytes > 0) {
      const auto bare = contestants.bare();
      const auto worker = contestants.worker();
      if (rank == 0) check(*worker, bare.get(), scenario.bytes);
      group.barrier();
    }
    const MakeAction bare = [&contestants, &data, &back]() -> Action {
      const auto side = contestants.bare();
      return [side, &data, &back] { side->round_trip(&data, &back); };
    };
    const MakeAction ours = [&contestants, &array, &scenario]() -> Action {
      const auto side = contestants.worker();
      return [side, &array, &scenario] {
        if (scenario.bytes == 0) return side->rpc_sync(1, scenario.what);
        side->rpc_sync<rpc::Array<uint8_t>>(1, "echo", array);
      };
    };
    outcomes.push_back(compare_apart(scenario, arguments, group, bare, ours));
  }
  if (rank == 0) print("tensorpipe", outcomes, arguments.json);
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  using namespace backplane::bench;  // NOLINT: main
  const Arguments arguments = parse(argc, argv);
  return on_two_ranks(arguments.pin, [&arguments](int rank, const std::filesystem::path& directory) {
    body(rank, directory, arguments);
  });
}
