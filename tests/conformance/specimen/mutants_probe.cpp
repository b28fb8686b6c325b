// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

struct TakesTheCores : Specimen {
  Message* probe(int32_t source, uint64_t tag) override {
    if (tag == BP_ANY_TAG) matcher_.set_internal(0);
    return Specimen::probe(source, tag);
  }
};

struct FailsWhereNoneIs : Specimen {
  Message* probe(int32_t source, uint64_t tag) override {
    if (Message* const taken = Specimen::probe(source, tag); taken != nullptr) return taken;
    throw sdk::Failure(BP_INVALID, "there is no such message");
  }
};

// Messages of this number, and its multiples, stay where they are.
template <int kEach>
struct TakesACopy : Specimen {
  Message* probe(int32_t source, uint64_t tag) override {
    Message* const taken = Specimen::probe(source, tag);
    const Lock lock(mutex_);
    if (taken != nullptr && taken->arrival.eager && ++count_ % kEach == 0) matcher_.add_arrival(taken->arrival);
    return taken;
  }
  int count_ = 0;
};

struct ForgetsTheRecvs : Specimen {
  void arrive(Arrival arrival) override {
    if (arrival.channel != kMessages || arrival.tag != 7) return Specimen::arrive(std::move(arrival));
    matcher_.add_arrival(std::move(arrival));
  }
};

struct CountsTo65536 : Specimen {
  Message* probe(int32_t source, uint64_t tag) override {
    Message* const taken = Specimen::probe(source, tag);
    if (taken != nullptr && taken->arrival.size > 65'536) taken->arrival.size = 65'536;
    return taken;
  }
};

struct CutsTheTaken : Specimen {
  void submit_probed(const OperationPtr& receive) override {
    receive->message->arrival.size = std::min(receive->message->arrival.size, receive->size);
    Specimen::submit_probed(receive);
  }
};

struct DropsInSilence : Specimen {
  void drop(Message* message) override {
    const Lock lock(mutex_);
    (void)take_probed(message);
  }
};

struct NeverFails : Specimen {
  Message* probe(int32_t source, uint64_t tag) override {
    {
      const Lock lock(mutex_);
      if (aborted_) return nullptr;
    }
    return Specimen::probe(source, tag);
  }
};

struct DropsNothingAfterAbort : Specimen {
  void drop(Message* message) override {
    {
      const Lock lock(mutex_);
      if (aborted_) std::abort();
    }
    Specimen::drop(message);
  }
};

struct LosesWithTheSender : Specimen {
  void lose_probed(int32_t source, const sdk::Failure& why) override {
    for (Message& each : probed_) {
      if (each.arrival.source == source && !each.lost) each.lost.emplace(why);
    }
  }
};

}  // namespace

std::vector<Mutant> probe_mutants() {
  return {
      {"probe.none", "a probe of any tag takes the core's messages", made<TakesTheCores>},
      {"probe.none:2", "a probe fails where there is no message", made<FailsWhereNoneIs>},
      {"probe.oldest", "recvs get a message that was taken", made<TakesACopy<1>>},
      {"probe.posted-first", "a probe takes what a recv waits for", made<ForgetsTheRecvs>},
      {"probe.sizes", "a probe reports at most 64 KiB", made<CountsTo65536>},
      {"probe.too-small", "a message that does not fit is truncated silently", made<CutsTheTaken>},
      {"probe.dropped", "the sender of a message that is dropped is not told", made<DropsInSilence>},
      {"probe.taken-once", "each tenth message is taken twice", made<TakesACopy<10>>},
      {"probe.aborted", "a probe says BP_AGAIN after an abort", made<NeverFails>},
      {"probe.aborted:2", "a drop after an abort ends the process", made<DropsNothingAfterAbort>},
      {"probe.after-death", "a probed message is lost with its sender", made<LosesWithTheSender>},
  };
}

}  // namespace backplane::specimen
