// SPDX-License-Identifier: Apache-2.0
#include "mutants_async.hpp"

namespace backplane::specimen {
namespace {

constexpr bool moves_message(const bp_op& op) { return op.kind == BP_SEND || op.kind == BP_RECV; }

// Wrong for messages, or for collectives.
template <bool messages>
class Interrupts : public Specimen {
 public:
  bool interrupted(const bp_op& op, Lock& lock) override {
    return moves_message(op) == messages ? wrongly(op, lock) : Specimen::interrupted(op, lock);
  }

 protected:
  virtual bool wrongly(const bp_op& op, Lock& lock) = 0;
};

template <bool messages>
class NeverAsks final : public Interrupts<messages> {
  bool wrongly(const bp_op&, Lock&) override { return false; }
};

template <bool messages>
class IgnoresAnswer final : public Interrupts<messages> {
  bool wrongly(const bp_op& op, Lock& lock) override {
    static_cast<void>(this->Specimen::interrupted(op, lock));
    return false;
  }
};

template <bool messages>
class AsksElsewhere final : public Interrupts<messages> {
  bool wrongly(const bp_op&, Lock& lock) override {
    bool interrupts = false;
    lock.unlock();
    std::thread([&] { interrupts = this->interruption_.asked(); }).join();
    lock.lock();
    return interrupts;
  }
};

template <bool messages>
class AsksWithLock final : public Interrupts<messages> {
  bool wrongly(const bp_op&, Lock&) override { return this->interruption_.asked(); }
};

class AsksRarely final : public Interrupts<true> {
  bool wrongly(const bp_op& op, Lock& lock) override { return ++slices_ % 10 == 0 && Specimen::interrupted(op, lock); }
  int slices_ = 0;
};

class AsksInWait final : public Specimen {
 public:
  bool wait(Task& task, int64_t timeout_ns) override {
    return !interruption_.asked() && Specimen::wait(task, timeout_ns);
  }
};

class RunsWithQuestions final : public Specimen {
 public:
  void run_collective(Collective& collective) override {
    if (interruption_.asked()) throw sdk::Interruption::failure();
    Specimen::run_collective(collective);
  }
};

bool is_interruption(const sdk::Failure& why) { return std::string_view(why.what()).starts_with("interrupted"); }

class InterruptDropsMessage final : public DropsMessages {
  bool eats(const sdk::Failure& why) const override { return is_interruption(why); }
};

class InterruptTimesOut final : public Specimen {
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    Specimen::give_up(operation, is_interruption(why) ? sdk::Failure(BP_TIMEOUT, why.what()) : why);
  }
};

class InterruptSaysCancelled final : public Specimen {
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    Specimen::give_up(operation, is_interruption(why) ? sdk::Failure(BP_CANCELLED, "cancelled") : why);
  }
};

}  // namespace

std::vector<Mutant> async_interrupt_mutants() {
  return {
      {"async.interrupt-message", "submit never asks the program", made<NeverAsks<true>>},
      {"async.interrupt-message:2", "submit ignores the answer", made<IgnoresAnswer<true>>},
      {"async.interrupt-message:3", "submit asks on another thread", made<AsksElsewhere<true>>},
      {"async.interrupt-message:4", "submit asks with the group's lock held", made<AsksWithLock<true>>},
      {"async.interrupt-message:5", "submit asks every 500 ms", made<AsksRarely>},
      {"async.interrupt-message:6", "work_wait asks", made<AsksInWait>},
      {"async.interrupt-message:7", "an interrupted recv drops the next message", made<InterruptDropsMessage>},
      {"async.interrupt-message:8", "an interrupted recv ends with BP_TIMEOUT", made<InterruptTimesOut>},
      {"async.interrupt-message:9", "an interrupted recv has another text", made<InterruptSaysCancelled>},
      {"async.interrupt-collective", "submit of a collective never asks", made<NeverAsks<false>>},
      {"async.interrupt-collective:2", "submit of a collective ignores the answer", made<IgnoresAnswer<false>>},
      {"async.interrupt-collective:3", "submit of a collective asks on another thread", made<AsksElsewhere<false>>},
      {"async.interrupt-collective:4", "submit asks with the group's lock held", made<AsksWithLock<false>>},
      {"async.interrupt-collective:5", "the thread of collectives asks", made<RunsWithQuestions>},
  };
}

}  // namespace backplane::specimen
