"""Each attribute that the package asks for exists. The parts for torch are read only: they run where torch is installed."""
import ast

from ranks import ROOT

PACKAGE = ROOT / "client/python/commd"
# Attributes that hold an object of one class everywhere.
CLASS_OF = {"_client": "Client", "calls": "Library", "_library": "Library", "_group": "ProcessGroup", "_comm": "Communicator"}
# What classes have from bases outside of the package.
FOREIGN = {"ProcessGroup": {"_register_backend"}}


def is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


class Known(ast.NodeVisitor):
    """The classes of the package: their attributes, their bases, and what their methods ask of self."""

    def __init__(self):
        self.attributes, self.bases, self.asked, self.of_class = {}, {}, [], None

    def visit_ClassDef(self, node):
        outside, self.of_class = self.of_class, node.name
        own = self.attributes.setdefault(node.name, set())
        self.bases[node.name] = [getattr(base, "id", getattr(base, "attr", None)) for base in node.bases]
        for each in node.body:
            self.add_own(own, each)
        added_to = [each.target for each in ast.walk(node) if isinstance(each, ast.AugAssign)]
        own.update(each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and is_self(each.value) and isinstance(each.ctx, ast.Store)
                   and each not in added_to)
        self.asked += [(node.name, each.attr, each.lineno) for each in added_to if isinstance(each, ast.Attribute) and is_self(each.value)]
        self.generic_visit(node)
        self.of_class = outside

    def add_own(self, own, statement):
        """A statement in the body of a class."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own.add(statement.name)
        elif isinstance(statement, ast.AnnAssign):
            own.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            names = {name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            own.update(names | (set(ast.literal_eval(statement.value)) if "__slots__" in names else set()))
        elif isinstance(statement, ast.If):  # TYPE_CHECKING, and what depends on the system
            for each in statement.body + statement.orelse:
                self.add_own(own, each)

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Load):
            if is_self(node.value) and self.of_class:
                self.asked.append((self.of_class, node.attr, node.lineno))
            elif isinstance(node.value, ast.Attribute) and node.value.attr in CLASS_OF:
                self.asked.append((CLASS_OF[node.value.attr], node.attr, node.lineno))
        self.generic_visit(node)


def test_each_attribute_exists():
    files, library = {}, set()
    for path in sorted(PACKAGE.rglob("*.py")):
        files[path] = Known()
        tree = ast.parse(path.read_text())
        files[path].visit(tree)
        # The functions of the library are declared by dictionaries of their names.
        library.update(key.value for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys
                       if isinstance(key, ast.Constant) and str(key.value).startswith("comm_"))
    classes, bases = {}, {}
    for known in files.values():
        for name, attributes in known.attributes.items():
            classes.setdefault(name, set()).update(attributes)
            bases.setdefault(name, set()).update(known.bases[name])
    classes["Library"] |= library | {"has_stores"}

    def family(name):
        """The class, its bases, and the classes that it is a base of: a mixin uses what these have."""
        related = {name} | bases.get(name, set()) | {other for other, theirs in bases.items() if name in theirs}
        return related | {base for each in related for base in bases.get(each, set())}

    missing = []
    for path, known in files.items():
        for name, attribute, line in known.asked:
            there = set().union(*(classes.get(each, set()) | FOREIGN.get(each, set()) for each in family(name)))
            if attribute not in there and not attribute.startswith("__"):
                missing.append(f"{path.relative_to(PACKAGE)}:{line}: {name} has no {attribute}")
    assert len(classes) > 30 and not missing, "\n".join(missing)
