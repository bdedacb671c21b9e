"""What steps.c does, in Python."""

import os
import sys
import time

import forebay_checkpoint


def wait_while(name):
    while os.path.exists(name):
        time.sleep(0.01)


def open_with_retries(path, mode):
    """A node that is started again may need a moment."""
    for _ in range(6000):
        try:
            return open(path, mode)
        except OSError:
            time.sleep(0.01)
    return open(path, mode)


class Model:
    def __init__(self):
        self.h, self.i, self.step, self.length = 1, 0, 0, 0

    def save(self):
        if os.path.exists("refuse"):
            raise forebay_checkpoint.Refuse("not now")
        self.out.flush()
        sys.stdout.flush()
        with open("state.new", "w") as file:
            file.write(f"{self.h} {self.i}")
            wait_while("saving")
            if os.path.exists("die"):
                os.abort()
            file.write(f" {self.step} {self.out.tell()}\n")
        os.rename("state.new", "state")
        return os.path.join(os.getcwd(), "state")


def leave():
    wait_while("ending")
    sys.exit(forebay_checkpoint.EXIT)


def main():
    steps, model = int(sys.argv[2]), Model()
    os.chdir(sys.argv[1])
    if forebay_checkpoint.state():
        with open_with_retries(forebay_checkpoint.state(), "r") as file:
            model.h, model.i, model.step, model.length = map(int, file.read().split())
    with open_with_retries(f"begun.{forebay_checkpoint.restarts()}", "w") as begun:
        begun.write(",".join(forebay_checkpoint.nodes()))
    model.out = open_with_retries("out", "a")
    model.out.truncate(model.length)
    checkpoint = forebay_checkpoint.Checkpoint(model.save)
    try:
        forebay_checkpoint.Checkpoint(model.save)
        sys.exit(5)
    except forebay_checkpoint.NotMigratable:
        pass
    while model.step < steps:
        end = (model.step + 1) * 1000
        while model.i == end - 1000 and not os.path.exists(f"go.{model.step}"):
            time.sleep(0.02)
            if checkpoint.poll():
                leave()
        while model.i < end:
            model.h = (model.h * 1103515245 + model.i) % 2147483648
            model.i += 1
            model.out.write(f"{model.i} {model.h}\n")
            if model.i % 500 == 0:
                print(f"at {model.i} {model.h}")
            if model.i % 100 == 0:
                time.sleep(0.001)
                if model.i < end and checkpoint.poll():
                    leave()
        model.step += 1
        model.out.flush()
        sys.stdout.flush()
        print(f"step {model.step}", file=sys.stderr)
    model.out.close()
    sys.exit(7)


main()
